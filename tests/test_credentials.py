"""Detection of secrets in URLs."""

import pytest

from megaptm.credentials import has_credentials, without_credentials


@pytest.mark.parametrize(
    "text",
    [
        "http://user:hunter2@host:5000",
        "track.uri=https://user:hunter2@host/path",
        "HTTP://user:hunter2@host",
        "https://hunter2@host",
        "https://user%3Ahunter2@host",
        "http://:hunter2@host",
        "http://user:hun/ter2@host",
        "postgresql+psycopg2://mlflow:hunter2@db/mlflow",
        "postgresql://db/mlflow?user=a&password=hunter2",
        "s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtn/FEMI/K7MDENG+bPx@bucket/web",
        "s3://AKIAIOSFODNN7EXAMPLE:123/FEMI@bucket/web",
        "s3://AKIAIOSFODNN7EXAMPLE@bucket/web",
        "simplecache::s3://KEY:SECRET@bucket/web",
        "data.mix={corpora/a: 1, s3://KEY:SECRET@bucket/web: 2}",
        "--corpus=s3://KEY:SECRET@bucket",
        "https://b.s3.amazonaws.com/a?X-Amz-Algorithm=AWS4&X-Amz-Credential=AKIA%2F2026&X-Amz-Signature=ab12",
        "https://b.s3.amazonaws.com/a?AWSAccessKeyId=AKIA&Expires=1&Signature=ab",
        "https://a.blob.core.windows.net/c/x?sv=2024&sp=r&sig=ab%3D",
        "https://storage.googleapis.com/b/x?X-Goog-Signature=ab",
        "https://host/x?X%2DAmz%2DSignature=ab",
        "https://host/x#access_token=ab",
        "https://host/x?api_key=ab",
        "https://host/x?pass=ab",
        "https://host/x?jwt=ab",
        "http:///user:hunter2@host",
        "docker://user:hunter2@registry/image",
    ],
)
def test_secret_in_a_url_is_found(text):
    assert has_credentials(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000",
        "http://[::1]:5000/a@b",
        "http://host:5000/a:b@c",
        "sqlite:////srv/lm/a:b@c/mlflow.db?timeout=60",
        "file:///a:b@c",
        "s3://bucket/crawl@2024/a.jsonl",
        "hf://datasets/team/web@main/a.jsonl",
        "abfss://container@account.dfs.core.windows.net/web",
        "postgresql://mlflow@db/mlflow",
        "docker://ubuntu:24.04@sha256:0123",
        "data.mix={s3://bucket/a: 1, https://host/b: 2}",
        "https://host/x?tokenizer=bert&design=3&config=a",
        "a note to me@host, on http://host",
        "http://host, or me@host",
        "user:password@host",
        "train.steps=3",
    ],
)
def test_text_without_secret_is_accepted(text):
    assert not has_credentials(text)


def test_long_word_is_searched_in_linear_time():
    assert not has_credentials("x1" * 2**19)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            'Could not connect to the endpoint URL: "http://me:hunter2@10.0.0.1:9000/web"',
            'Could not connect to the endpoint URL: "http://10.0.0.1:9000/...',
        ),
        (
            "403, message='Forbidden', url='https://b.s3.amazonaws.com/a?X-Amz-Signature=hunter2' (again)",
            "403, message='Forbidden', url='https://b.s3.amazonaws.com/... (again)",
        ),
        ("no answer from http://host:5000/a@b?page=2", "no answer from http://host:5000/a@b?page=2"),
    ],
)
def test_secrets_are_removed_from_messages(message, expected):
    assert without_credentials(message) == expected

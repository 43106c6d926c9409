import json

import pytest
from PIL import Image

from tests.data_pipeline.sources.reading import reading, written


def picture(path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(path)


def test_caption_and_image_share_a_stem(tmp_path):
    folder = tmp_path / "pile"
    for name in ("a.jpg", "b.PNG", "below/a.webp"):
        picture(folder / name)
    for name in ("a", "b", "below/a"):
        written(folder / f"{name}.txt", f"Caption of {name}.\n")
    result = reading(folder, format="image-text")
    assert [(document.text, document.notes["image"], document.source) for document in result.documents] == [
        ("Caption of a.", str(folder / "a.jpg"), "pile/a.txt"),
        ("Caption of b.", str(folder / "b.PNG"), "pile/b.txt"),
        ("Caption of below/a.", str(folder / "below" / "a.webp"), "pile/below/a.txt"),
    ]
    assert not result.counts


def test_unpaired_caption_and_image_are_dropped(tmp_path, refusal):
    picture(tmp_path / "a.jpg")
    written(tmp_path / "b.txt", "Caption")
    assert reading(tmp_path, format="image-text").counts == {"no caption": 1, "no image": 1}
    assert "a.jpg has no caption beside it: write one to a.txt" in refusal(tmp_path, format="image-text")


def test_metadata_names_images(tmp_path):
    folder = tmp_path / "pile"
    picture(folder / "images" / "a.jpg")
    written(folder / "images" / "a.txt", "not read: metadata speak for the folder")
    rows = [
        {"file_name": "images/a.jpg", "caption": "One.", "id": 1},
        {"file_name": "https://pictures.example/b.jpg", "caption": "Two.", "id": 2},
        {"caption": "Three."},
    ]
    written(folder / "metadata.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    result = reading(folder, format="image-text", text="caption", keep=("id",))
    assert [(document.text, document.notes) for document in result.documents] == [
        ("One.", {"id": 1, "image": str(folder / "images" / "a.jpg")}),
        ("Two.", {"id": 2, "image": "https://pictures.example/b.jpg"}),
    ]
    assert result.counts == {"no image": 1}


@pytest.mark.parametrize("location", ["../a.jpg", "images/../../a.jpg", "{parent}/a.jpg", "a\0.jpg", 7])
def test_metadata_outside_folder_is_dropped(location, tmp_path):
    picture(tmp_path / "a.jpg")
    location = location.format(parent=tmp_path) if isinstance(location, str) else location
    written(tmp_path / "pile" / "metadata.jsonl", json.dumps({"file_name": location, "caption": "One."}) + "\n")
    result = reading(tmp_path / "pile", format="image-text", text="caption")
    assert not result.documents
    assert result.counts == {"no image": 1}


@pytest.mark.parametrize("format", [None, "text"])
def test_captions_are_text_by_default(format, tmp_path):
    picture(tmp_path / "a.jpg")
    written(tmp_path / "a.txt", "Caption")
    [document] = reading(tmp_path, format=format).documents
    assert document.notes == {}

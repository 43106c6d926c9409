import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.clean.scrub import Scrub
from tests.data_pipeline.clean.running import run, texts

MARKED = Scrub(email="<email>", ipv4="<ipv4>", ipv6="<ipv6>", phone="<phone>")


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("Write to jane.doe+news@mail.example.co.uk.", "Write to <email>."),
        ("<john_smith@uni-bonn.de>, mailto:a@b.org", "<<email>>, mailto:<email>"),
        ("naïve: josé@correo.es!", "naïve: <email>!"),
        ("The server 203.0.114.7 answered", "The server <ipv4> answered"),
        ("http://8.8.8.200:8080/x and 151.101.1.69/24", "http://<ipv4>:8080/x and <ipv4>/24"),
        ("ping 8.8.8.8 or IP: 1.2.3.4.", "ping <ipv4> or IP: <ipv4>."),
        ("at 2001:4860:4860::8888, or [2606:4700:4700:0:0:0:0:1111]:53", "at <ipv6>, or [<ipv6>]:53"),
        ("Address 2A00:1450:4001:81b::200e: up", "Address <ipv6>: up"),
        ("call (212) 736-5000 or 212-736-5000, 212.736.5000", "call <phone> or <phone>, <phone>"),
        ("1-800-273-8255 and +1 (415) 555-2671.", "<phone> and <phone>."),
        ("+49 30 901820, +44 20 7946 0958; +8613800138000", "<phone>, <phone>; <phone>"),
        ("Tel.: 030/901820, Fax: 01 42 68 53 00", "Tel.: <phone>, Fax: <phone>"),
        ("电话 phone: 010-65529988。", "电话 phone: <phone>。"),
    ],
)
def test_personal_data_is_replaced(text, scrubbed):
    assert texts(MARKED, text) == [scrubbed]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("请发到", "我们会回复"),
        ("請寄到", "。"),
        ("ご連絡は", "までお願いします"),
        ("カタカナ", "カタカナ"),
        ("이메일은", "으로 보내세요"),
        ("อีเมล", "ครับ"),
        ("\uff08", "\uff09"),
    ],
)
@pytest.mark.parametrize(
    ("written", "placeholder"),
    [
        ("jane.doe@mail.example.co.uk", "<email>"),
        ("203.0.114.7", "<ipv4>"),
        ("2001:4860:4860::8888", "<ipv6>"),
        ("+8613800138000", "<phone>"),
        ("+82 10-1234-5678", "<phone>"),
        ("(415) 666-7777", "<phone>"),
        ("415-666-7777", "<phone>"),
    ],
)
def test_matches_beside_scripts_without_spaces(before, after, written, placeholder):
    assert texts(MARKED, before + written + after) == [before + placeholder + after]


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        # Examples of libphonenumber's matcher (from its tests, Apache 2.0), matched and not, reworded.
        ("650-253-4561 -- 415-234-3451", "<phone> -- <phone>"),
        ("(415) 666-7777 (800) 443-1223", "<phone> <phone>"),
        ("CA 34215 - 415-666-7777 is mine, 34215 my zip code", "CA 34215 - <phone> is mine, 34215 my zip code"),
        ("$20 415-666-7777 100$", "$20 <phone> 100$"),
        ("+64 3 331 6005, +39 02-36618 300; +54 9 343 555 1212", "<phone>, <phone>; <phone>"),
        ("+52 (449)978-0001.Nice", "+52 (449)978-0001.Nice"),
        ("+52 (449)978-0001. Nice", "<phone>. Nice"),
        ("+1 212 736 5000 2024", "<phone> 2024"),
        ("+1.4155552671 (whois)", "<phone> (whois)"),
        ("电话：010-65529988，手机13800138000找我", "电话：<phone>，手机<phone>找我"),  # noqa: RUF001
        ("電話番号：03-1234-5678", "電話番号：<phone>"),  # noqa: RUF001
        ("전화번호: 02-312-3456, 팩스 02-312-3457", "전화번호: <phone>, 팩스 <phone>"),
        ("我的phone: 010-65529988", "我的phone: <phone>"),
    ],
)
def test_phone_number_boundaries(text, scrubbed):
    assert texts(MARKED, text) == [scrubbed]


@pytest.mark.parametrize(
    "text",
    [
        # Coordinates: pairs of decimals, and ISO 6709.
        "+37.774929, -122.419418; (+51.507432; -0.127758) +44.2079460958, -93.12",
        "+40.689247-074.044502/ and +90.1234567 +45.123456, +35.6894875° N",
        # Lists of numbers, amounts, shares.
        "+1 2 3 4 5 6 7 8 9 0 1, +10 20 30 40 50 60, +100 200 300 400 500 600",
        "200-300-4000, 123-456-7890, 555-123-4567, 199.200.3000",
        "$415-666-7777, 415-666-7777$, £415-666-7777, ¥4156667777, 415-666-7777%",
        "mobile: 320 480 640 768, phone: 12.5 13.5 16.25, tel: 1 2 3 4 5 6 7",
        "phone: 16/12/2011, tel. 2011-2012, fax: 2012-01-02 08",
        "电话 110, 手机2007年, 전화 2011-2012",
        # No letter, digit or sign that belongs to it is next to a number.
        "415-666-7777def, abc415-666-7777, É415-666-7777, 650-253-4561--455-234-3451, +14156667777É",
    ],
)
def test_coordinates_and_lists_are_retained(text):
    assert texts(MARKED, text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "@property and user@localhost, a @ b, foo@bar, `@pytest.mark.parametrize`, https://***:***@proxy.com",
        "logo@2x.png, getty@tty1.service, lodash@4.17.21, @babel/core@7.1.0",
        "version 203.0.114.7, v2.17.110.3, pkg-1.2.3.104.tar.gz, 1.2.3.104rc1, =1.10.3.4",
        "section 3.11.4.2 and 10.0.19045.3803 and 120.0.6099.109, 1.2.3.4.5",
        "10.0.0.1, 127.0.0.1, 192.168.1.20, 0.0.0.0, 999.1.1.300, 255.255.255.0",
        "std::vector, ::1, fe80::1, 12:30:59, 2023:11:12 10:30, a::b, 2001:db8::1, FACE::B00C",
        "2023-11-12, 12.11.2023, 2023-11-12T10:30:00+0200, 10:30:59",
        "ISBN 978-0-306-40615-7, 4111 1111 1111 1111, 1234567890, 512 256 1024",
        "123-456-78901, 212-736-5000-1, 0.212.736.5000, a-212-736-5000",
        "C++11 2011, x+1, +1, 5+1000000, +12345, a telephone of 1876, fax 2",
        "3.141592653589793, 1,000,000,000, 100 000 0000, 192-000-0000",
    ],
)
def test_versions_dates_and_numbers_are_retained(text):
    assert texts(MARKED, text) == [text]


def test_kinds_can_be_disabled():
    text = "a@b.org 203.0.114.7 2001:4860:4860::8888 212-736-5000"
    assert texts(Scrub(email=None, ipv4=None, ipv6=None, phone=None), text) == [text]
    assert texts(Scrub(ipv4=None, ipv6=None, phone=None), text)[0].startswith("email@example.com 203.0.114.7 2001")


def test_replacements_are_counted():
    retained, _ = run(Scrub(), "a@b.org, 203.0.114.7", "nothing", notes={"url": "here"})
    assert [document.notes for document in retained] == [{"url": "here", "scrubbed": 2}, {"url": "here"}]


PIECES = [
    "a@b.org",
    "203.0.114.7",
    "212-736-5000",
    "+49 30 901820",
    "tel: 0301234567",
    "2001:4860::8888",
    " ",
    ".",
    "-",
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=10))
def test_scrub_is_idempotent(pieces):
    once, _ = run(Scrub(), " ".join(pieces))
    again = list(Scrub()(once, None))
    assert again == once

"""What the processor is, where the system does not say it."""

from megaptm import processor


def test_a_processor_that_nothing_tells_of_is_no_ones(monkeypatch, tmp_path):
    for place in (tmp_path / "absent", tmp_path):  # a folder cannot be read, whoever asks
        monkeypatch.setattr(processor, "DESCRIPTION", place)
        assert processor._description.__wrapped__() == ""


def test_a_processor_whose_name_is_no_text_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "DESCRIPTION", tmp_path / "told")
    processor.DESCRIPTION.write_bytes(b"vendor_id : AuthenticAMD\nmodel name : \xff\n")
    assert "AuthenticAMD" in processor._description.__wrapped__()

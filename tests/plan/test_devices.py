import pytest

from tmatch.plan import DEVICES, find_device


@pytest.mark.parametrize("name", ["H100 SXM", "h100-sxm", "H100SXM"])
def test_device_names_ignore_case_and_spaces(name: str) -> None:
    assert find_device(name) is DEVICES["H100 SXM"]


def test_lower_precision_is_not_slower() -> None:
    for device in DEVICES.values():
        assert device.peak("bfloat16") > device.peak("tf32") >= device.peak("float32")


def test_an_unknown_device_raises() -> None:
    with pytest.raises(ValueError, match="'A100'; choose from H100 SXM, A100 80GB"):
        find_device("A100")

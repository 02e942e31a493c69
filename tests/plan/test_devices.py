import pytest

from tmatch.plan import DEVICES, device_of


@pytest.mark.parametrize("name", ["H100 SXM", "h100-sxm", "H100SXM"])
def test_a_device_is_found_however_it_is_written(name: str) -> None:
    assert device_of(name) is DEVICES["H100 SXM"]


def test_coarser_products_are_no_slower() -> None:
    for device in DEVICES.values():
        assert device.peak("bfloat16") > device.peak("tf32") >= device.peak("float32")


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no device 'A100' in the table; the nearest are A100 80GB, A100 40GB"):
        device_of("A100")
    with pytest.raises(ValueError, match=r"there are H100 SXM, A100 80GB, A100 40GB, L40S, RTX 4090, RTX 3090"):
        device_of("zzz")

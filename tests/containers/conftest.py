"""Images that are really built, and containers that are really run, without Docker: `make test-containers`."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from engine import MINUTE, run

STORE = Path(sys.prefix) / "containers"
BASE = "localhost/debian-python:bookworm"


@pytest.fixture(scope="session", autouse=True)
def engine():
    """buildah and podman with the store that `scripts/container-tools` made."""
    for program in ("buildah", "podman"):
        if shutil.which(program) is None or not (STORE / "storage.conf").exists():
            pytest.fail(f"{program} or its store is not there: run these tests with `make test-containers`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(STORE / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(STORE / "storage.conf"))
        yield


@pytest.fixture(scope="session")
def pip_options(tmp_path_factory):
    """What lets pip find in a build what it finds here: this machine's indexes, certificates and folders of wheels."""
    said = run(sys.executable, "-m", "pip", "config", "list").stdout
    lines, mounted = {}, {}
    for name, value in re.findall(
        r"^(?:global|user|site|:env:)\.(cert|find-links|(?:extra-)?index-url)='(.*)'$", said, re.M
    ):
        for place in re.findall(r"(?<![^ /])/[\w.-]+(?:/[\w.-]+)*", value.replace("://", ":/ ")):
            if Path(place).exists():
                value = value.replace(place, f"/host{place}")
                place = str(Path(place).parent) if "index" in name else place  # its pages point beside themselves
                mounted[place] = f"/host{place}"
        lines[name] = f"{name} = {value}\n"
    settings = tmp_path_factory.mktemp("pip") / "pip.conf"
    settings.write_text("[global]\n" + "".join(lines.values()))
    mounted[str(settings)] = "/etc/pip.conf"
    options = [option for place, inside in mounted.items() for option in ("--volume", f"{place}:{inside}:ro")]
    # A machine with wheels of its own has torch for the CPU among them, and may not reach the index of torch.
    if (index := os.environ.get("TORCH_INDEX", "" if "find-links" in lines else None)) is not None:
        options += ["--build-arg", f"TORCH_INDEX={index}"]
    return options


@pytest.fixture(scope="session")
def build(pip_options):
    """Build a target of the Dockerfile; the name of its image."""

    def built(target):
        image = f"localhost/self-attention-service:{target}"
        options = ["--build-arg", f"BASE={BASE}", "--build-arg", "REVISION=test", *pip_options]
        where = ("--isolation", "chroot", "--layers", "--pull-never", "--format", "docker")
        run("buildah", "build", *where, *options, "--target", target, "-t", image, ".", timeout=30 * MINUTE)
        return image

    return built

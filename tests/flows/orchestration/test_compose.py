"""docker-compose.yml: valid by the compose specification's own schema, closed to the outside, without secrets or root."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml

from tests import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SCHEMA = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
STAY = [name for name, service in SERVICES.items() if service["restart"] != "no"]


def test_the_file_is_valid_by_the_specification() -> None:
    jsonschema.validate(COMPOSE, SCHEMA)
    wrong = {**COMPOSE, "services": {"server": {"prots": ["80:80"]}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_nothing_listens_beyond_loopback() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published and all(str(port).startswith("127.0.0.1:") for port in published)
    assert COMPOSE["networks"]["inside"]["internal"] is True


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_root_and_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    assert "build" in service or re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])


def test_our_images_end_as_a_user_without_rights() -> None:
    images = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[2:]
    for image in images:
        users = re.findall(r"^USER (\S+)", image, flags=re.MULTILINE)
        assert users[-1:] == ["longtake"], f"{image.splitlines()[0]} runs as root"
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets == {image.split()[2] for image in images}


@pytest.mark.parametrize("name", [name for name in STAY if name != "services"])
def test_a_service_that_stays_tells_whether_it_is_well(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


def test_what_a_service_waits_for_can_come_true() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, f"{name} waits for {other}, which is not there"
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other]


def test_secrets_come_from_the_env_file_and_are_asked_for_there() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    wanted = set(re.findall(r"\$\{(\w+)", text))
    offered = dict(line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if line[:1].isalpha())
    assert wanted == offered.keys()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == {"POSTGRES_PASSWORD", "LONGTAKE_LOGIN", "STORE_KEY", "STORE_SECRET"}
    assert not any(offered[name] for name in required), "a password in the example would be everybody's"
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_every_named_volume_is_declared() -> None:
    used = {v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", []) if not v.startswith(("$", ".", "/"))}
    assert used == COMPOSE["volumes"].keys()

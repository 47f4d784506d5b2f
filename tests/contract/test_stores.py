"""Every store, held to the contract: memory, a local folder, moto's S3 and JuiceFS's gateway, bare and wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from stoker.cli.servers import Server, juicefs_gateway, moto_server
from stoker.store import Local, Memory, Store, connect, innermost
from stoker.testing.store_suite import StoreSuite
from support_store import fresh_prefix, options_for


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    """moto's S3, for all tests of this file."""
    with moto_server() as server:
        yield server


@pytest.fixture(scope="module")
def juicefs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JuiceFS's gateway, for all tests of this file."""
    with juicefs_gateway(tmp_path_factory.mktemp("juicefs")) as server:
        yield server


class TestMemory(StoreSuite):
    """Objects in a dict."""

    pickles_content = True

    def make(self, tmp_path: Path) -> Store:
        return Memory("tests")

    def set_bytes(self, store: Store, key: str, data: bytes) -> None:
        assert isinstance(store, Memory)
        store._objects[key] = data

    def bytes_of(self, store: Store, key: str) -> bytes | None:
        assert isinstance(store, Memory)
        return store._objects.get(key)


class TestLocal(StoreSuite):
    """A folder, bare."""

    def make(self, tmp_path: Path) -> Store:
        return Local(tmp_path / "sub folder" / "100%")

    def set_bytes(self, store: Store, key: str, data: bytes) -> None:
        bottom = innermost(store)
        assert isinstance(bottom, Local)
        (bottom.root / key).parent.mkdir(parents=True, exist_ok=True)
        (bottom.root / key).write_bytes(data)

    def bytes_of(self, store: Store, key: str) -> bytes | None:
        bottom = innermost(store)
        assert isinstance(bottom, Local)
        return (bottom.root / key).read_bytes() if (bottom.root / key).exists() else None


class TestConnectedLocal(TestLocal):
    """A folder, as `connect` gives it."""

    def make(self, tmp_path: Path) -> Store:
        return connect(f"file://{tmp_path}/by%20url")


class S3Suite(StoreSuite):
    """What the two servers share: another client looks around the store."""

    server: Server

    def make(self, tmp_path: Path) -> Store:
        return connect(fresh_prefix(self.server), options=options_for(self.server))

    def _client(self, store: Store) -> tuple[S3Store, str]:
        _, _, bucket, prefix = store.url.split("/", 3)
        config = {
            "endpoint": self.server.endpoint,
            "access_key_id": self.server.access_key,
            "secret_access_key": self.server.secret_key,
            "region": "us-east-1",
            "disable_bulk_delete": True,
        }
        return S3Store(bucket, config=config, client_options={"allow_http": True}), prefix

    def set_bytes(self, store: Store, key: str, data: bytes) -> None:
        client, prefix = self._client(store)
        obstore.put(client, f"{prefix}/{key}", data)

    def bytes_of(self, store: Store, key: str) -> bytes | None:
        client, prefix = self._client(store)
        try:
            return bytes(obstore.get(client, f"{prefix}/{key}").bytes())
        except FileNotFoundError:
            return None


class TestMoto(S3Suite):
    """moto's S3."""

    @pytest.fixture(autouse=True)
    def _server(self, moto: Server) -> None:
        self.server = moto


class TestJuiceFS(S3Suite):
    """MinIO's code over a folder; it ignores conditions on writes."""

    conditional_put = False

    @pytest.fixture(autouse=True)
    def _server(self, juicefs: Server) -> None:
        self.server = juicefs

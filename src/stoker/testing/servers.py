"""Real S3 servers for tests: those of the demo."""

from stoker.cli.servers import Server, free_port, juicefs_gateway, moto_server

__all__ = ["Server", "free_port", "juicefs_gateway", "moto_server"]

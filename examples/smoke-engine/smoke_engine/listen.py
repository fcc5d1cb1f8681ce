"""Listening: the HTTP server around a loaded engine."""

import logging
import socket
from types import FrameType

import uvicorn

from smoke_engine.api import create_app
from smoke_engine.engine import Engine

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 1  # for connections to close when the server is told to stop


def listen(engine: Engine, host: str, port: int) -> None:
    """Serve until a signal comes; a port that is taken ends the process with a status other than 0."""
    config = uvicorn.Config(
        create_app(engine), host=host, port=port, log_config=None, timeout_graceful_shutdown=_GRACE_SECONDS
    )
    Server(config, engine).run()


class Server(uvicorn.Server):
    """A uvicorn server that logs when it listens, and ends the answers that are under way when it has to stop."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self.engine = engine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Bind the port, then log."""
        await super().startup(sockets)
        if self.started:
            address = f"http://{self.config.host}:{self.config.port}"
            logger.info("Ready: %s on %s", self.engine.served_name, address)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop taking requests."""
        self.engine.stop()
        super().handle_exit(sig, frame)

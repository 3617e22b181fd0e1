"""Servers beside this one: `make bench-peers`. A new one is a file here, its program in `servers/`, a name below."""

from typing import Final

from loadtest.peers import fastapi, mlserver, mosec, pytriton
from loadtest.peers.base import Peer

PEERS: Final[dict[str, Peer]] = {
    peer.name: peer for family in (mosec, mlserver, pytriton, fastapi) for peer in family.PEERS
}
"""Every peer by its name."""

"""python -m lodestone status ADDRESS: what a ps says of itself and its cluster, as JSON."""

from __future__ import annotations

import argparse
import json
import sys

from . import LodestoneError, status, version


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lodestone", description="Lodestone, from Python.")
    commands = parser.add_subparsers(dest="command", required=True)
    ask = commands.add_parser("status", help="the status of a ps, and of its cluster if it serves the coordinator")
    ask.add_argument("address", help="host:port of the ps")
    ask.add_argument("--token", help="file with this client's token")
    ask.add_argument("--authorities", help="PEM file of the authorities that vouch for the servers: TLS")
    ask.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for the answer")
    commands.add_parser("version", help="the version of the library")
    arguments = parser.parse_args()
    if arguments.command == "version":
        print(version())
        return 0
    try:
        found = status(arguments.address, token=arguments.token, tls=arguments.authorities, timeout=arguments.timeout)
    except LodestoneError as error:
        print(f"lodestone: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

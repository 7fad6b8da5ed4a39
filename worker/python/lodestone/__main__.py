"""python -m lodestone: servers' status, and scripts in several processes.

    python -m lodestone launch --servers 2 --workers 2 train.py --epochs 2
    python -m lodestone status ps-0:7000
"""

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
    run = commands.add_parser("launch", help="runs a script in several processes that train together, with servers")
    run.add_argument("--workers", type=int, default=2, help="processes of the script")
    run.add_argument("--servers", type=int, default=2, help="servers that are started on this machine")
    run.add_argument("--address", help="host:port of ps 0 of a cluster that runs, instead of servers of its own")
    run.add_argument("--folder", help="where servers keep the model; it goes on from there the next time")
    run.add_argument("script", help="what each process runs: lodestone.connect() in it needs no address")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    arguments = parser.parse_args()
    if arguments.command == "launch":
        from ._launch import main as launch_main

        return launch_main(arguments)
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

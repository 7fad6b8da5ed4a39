"""The package in one process with others that bring gRPC, protobuf or a C++ runtime of their own."""

import importlib.util
import itertools
import os
import subprocess
import sys
import unittest

from cluster_case import ClusterCase

# What each does once all are imported.
USES = {
    "grpc": """
from concurrent import futures
import grpc as g
server = g.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((g.method_handlers_generic_handler("t.T", {
    "Echo": g.unary_unary_rpc_method_handler(lambda request, context: request)}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with g.insecure_channel(f"127.0.0.1:{port}") as channel:
    assert channel.unary_unary("/t.T/Echo")(b"hello", timeout=60, wait_for_ready=True) == b"hello"
server.stop(None).wait()
""",
    "google.protobuf": """
from google.protobuf import struct_pb2
assert struct_pb2.Struct.FromString(struct_pb2.Struct().SerializeToString()) is not None
""",
    "torch": """
import torch
weight = torch.ones(4, requires_grad=True)
(weight * 2).sum().backward()
try:
    torch.ones(2) @ torch.ones(3)  # An exception through its C++.
except RuntimeError:
    pass
""",
    "lodestone": """
with lodestone.connect(sys.argv[1]) as cluster:
    table = cluster.embedding("beside", 2, lodestone.SGD(-1))
    table.push([1], [[1, 1]]).result()
    assert table.pull([1]).result().shape == (1, 2)
    try:
        cluster.table("none")
    except lodestone.NotFound:
        pass
""",
}


class Beside(ClusterCase):
    def run_in_orders(self, other):
        if importlib.util.find_spec(other.split(".")[0]) is None or importlib.util.find_spec(other) is None:
            self.skipTest(f"{other} is not here (apt-get install python3-{other.rsplit('.', 1)[-1].replace('grpc', 'grpcio')})")
        for imports, uses in itertools.product(itertools.permutations(("lodestone", other)), repeat=2):
            script = "import sys\n" + "".join(f"import {name}\n" for name in imports) + "".join(USES[name] for name in uses)
            # Without what newer versions of gRPC's own server say at its end.
            ended = subprocess.run([sys.executable, "-c", script, self.local.address], check=False, capture_output=True,
                                   text=True, env={**os.environ, "GRPC_VERBOSITY": "ERROR"})
            self.assertEqual((ended.returncode, ended.stderr), (0, ""), f"imported {imports}, used {uses}")

    def test_grpc_in_either_order(self):
        self.run_in_orders("grpc")

    def test_protobuf_in_either_order(self):
        self.run_in_orders("google.protobuf")

    def test_torch_in_either_order(self):
        self.run_in_orders("torch")


if __name__ == "__main__":
    unittest.main()

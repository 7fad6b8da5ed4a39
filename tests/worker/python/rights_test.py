"""What an identity's role lets a program do."""

import hashlib
import json
import os
import tempfile
import unittest

import numpy as np

import lodestone


class Rights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        identities = [self.identity("ps", role="admin"), self.identity("wanda", role="worker"),
                      self.identity("olga", role="observer", tables_read=["open", "rows"])]
        path = os.path.join(self.folder, "identities.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"identities": identities}, file)
        self.local = lodestone.local(2, config={"cluster": {"shards": 4},
                                                "security": {"token": self.token("ps"), "identities": path}})
        self.addCleanup(self.local.stop)

    def token(self, name):
        return os.path.join(self.folder, name)

    def identity(self, name, **more):
        with open(self.token(name), "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"{name}-token")
        return {"name": name, "token_sha256": hashlib.sha256(f"{name}-token".encode()).hexdigest(), **more}

    def test_an_observer_reads_the_tables_that_it_may_read(self):
        wanda = self.local.connect(token=self.token("wanda"))
        dense = wanda.dense("open", 4, lodestone.SGD(-1), broadcast={"every_ms": 5})
        wanda.embedding("rows", 2, lodestone.SGD(-1)).push([1], [[1, 2]]).result()
        wanda.dense("secret", 4)
        dense.push(np.ones(4)).result()
        olga = self.local.observe(token=self.token("olga"))
        table = olga.table("open")
        np.testing.assert_array_equal(table.pull().result(), np.ones(4))
        np.testing.assert_array_equal(olga.table("rows").pull([1, 2]).result(), [[1, 2], [0, 0]])
        with olga.subscribe(table) as following:
            self.assertTrue(following.refresh())
            np.testing.assert_array_equal(following.arrays[0], np.ones(4))
        with self.assertRaisesRegex(lodestone.PermissionDenied, "may not read table `secret`"):
            olga.table("secret")
        with self.assertRaisesRegex(lodestone.PermissionDenied, "needs the role worker"):
            olga.dense("new", 4)
        denied = {identity["name"]: int(identity.get("denied", 0))
                  for identity in lodestone.status(self.local.address, token=self.token("olga"))["identities"]}
        self.assertEqual(denied["olga"], 2)


if __name__ == "__main__":
    unittest.main()

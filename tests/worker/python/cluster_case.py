"""Tests with servers of their own."""

import tempfile
import unittest

import lodestone


class ClusterCase(unittest.TestCase):
    """Two servers for all tests of a class; each test has a connection of its own."""

    servers = 2
    keeps = False  # Whether servers can be started again with what they held.
    config = {"cluster": {"shards": 8}}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory() if cls.keeps else None
        cls.local = lodestone.local(cls.servers, folder=cls.folder and cls.folder.name, config=cls.config)

    @classmethod
    def tearDownClass(cls):
        cls.local.stop()
        if cls.folder is not None:
            cls.folder.cleanup()

    def setUp(self):
        self.cluster = lodestone.connect(self.local.address)
        self.addCleanup(self.cluster.close)

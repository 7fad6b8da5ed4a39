"""The annotations of the package: they are whole, and a script that uses them is right by them."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

import lodestone

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "typed_script.py")


@unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not here (apt-get install python3-mypy)")
class Typing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cache = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.cache.cleanup()

    def check(self, script):
        site = os.path.dirname(os.path.dirname(lodestone.__file__))
        return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", self.cache.name, script], check=False,
                              capture_output=True, text=True, env={**os.environ, "MYPYPATH": site}).stdout

    def test_a_script_and_the_package_pass_the_strict_check(self):
        self.assertIn("Success: no issues found", self.check(SCRIPT))

    def test_wrong_uses_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "wrong.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write("import lodestone\nwith lodestone.connect('x') as c:\n    c.dense('t', 'shape')\n"
                           "    c.table('t').nothing\n    lodestone.Adam(rate=1)\n    c.pull([]).result('soon')\n")
            found = self.check(script)
        for what in ('"dense" of "Cluster" has incompatible type "str"', 'has no attribute "nothing"',
                     'Unexpected keyword argument "rate" for "Adam"', '"result" of "Call" has incompatible type "str"'):
            self.assertIn(what, found)


if __name__ == "__main__":
    unittest.main()

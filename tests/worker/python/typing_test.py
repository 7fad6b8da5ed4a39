"""The annotations of the package: they are whole, and a script that uses them is right by them."""

import glob
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

import lodestone

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "typed_script.py")
# Parts of torch that neither the package nor the script names: to read them takes five times as long as all the rest.
UNREAD = ("_decomp", "_dynamo", "_functorch", "_inductor", "_lobpcg", "_prims", "_refs", "_subclasses", "ao", "cuda", "distributed",
          "func", "fx", "hub", "jit", "masked", "multiprocessing", "nn.quantized", "onnx", "package", "profiler", "quantization",
          "sparse", "testing", "utils.data", "utils.tensorboard")


@unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not here (apt-get install python3-mypy)")
class Typing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.config = os.path.join(cls.folder.name, "mypy.ini")
        with open(cls.config, "w", encoding="utf-8") as file:
            file.write("[mypy]\nstrict = True\n[mypy-" + ",".join(f"torch.{part}.*" for part in UNREAD)
                       + "]\nfollow_imports = skip\n")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, files, as_installed=True):
        """What mypy says of `files`. Of modules that are installed (PYTHONPATH) it takes the annotations, and passes over what is
        wrong in themselves."""
        site = os.path.dirname(os.path.dirname(lodestone.__file__))
        environment = {**os.environ, "MYPYPATH": site}
        if not as_installed:
            environment.pop("PYTHONPATH", None)
        return subprocess.run([sys.executable, "-m", "mypy", "--config-file", self.config, "--cache-dir",
                               os.path.join(self.folder.name, f"cache{as_installed}"), *files], check=False, capture_output=True,
                              text=True, env=environment).stdout

    def test_a_script_passes_the_strict_check(self):
        self.assertIn("Success: no issues found", self.check([SCRIPT]))

    def test_the_package_passes_the_strict_check(self):
        package = os.path.dirname(lodestone.__file__)
        found = self.check(sorted(glob.glob(os.path.join(package, "*.py"))), as_installed=False)
        self.assertIn("Success: no issues found", found)

    def test_wrong_uses_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "wrong.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write("import lodestone\nwith lodestone.connect('x') as c:\n    c.dense('t', 'shape')\n"
                           "    c.table('t').nothing\n    lodestone.Adam(rate=1)\n    c.pull([]).result('soon')\n")
            found = self.check([script])
        for what in ('"dense" of "Cluster" has incompatible type "str"', 'has no attribute "nothing"',
                     'Unexpected keyword argument "rate" for "Adam"', '"result" of "Call" has incompatible type "str"'):
            self.assertIn(what, found)


if __name__ == "__main__":
    unittest.main()

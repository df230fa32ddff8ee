"""What `regress.py` calls slower. `python3 -B benches/regress_test.py`"""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import regress


def run(ratios, adapter="a driver", by="of_read"):
    """The lines of a run."""
    other = "of_flops" if by == "of_read" else "of_read"
    ceilings = {"read": 1e10, "copy": 2e10, "flops": 3e10}
    yield {"bench": "kernels_matrix", "adapter": adapter, "ceilings": ceilings}
    for name, ratio in ratios.items():
        yield {"bench": "kernels_matrix", "name": name, "kernel": "k", "seconds": 1.0, "cpu_seconds": None,
               "bytes": 1.0, "flops": 1.0, by: ratio, other: 0.01}


def saved(part=None, adapter="a driver", **ratios):
    """What is kept of three runs, in which each name has these ratios."""
    runs = [run({name: values[i] for name, values in ratios.items()}, adapter) for i in range(3)]
    return {"date": "2026-01-01", "commit": "c", "runs": 3, "benches": ["kernels_matrix"], "filter": part,
            **regress.summarise(runs)}


class Compare(unittest.TestCase):
    def compared(self, old, new):
        """Status, standard output and standard error of `--compare` on files."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("old", "new")]
            for path, document in zip(paths, (old, new)):
                path.write_text(document if isinstance(document, str) else json.dumps(document))
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = regress.main(["--compare", *map(str, paths)])
        return status, out.getvalue(), err.getvalue()

    def row(self, out, name):
        return next((line for line in out.splitlines() if line.startswith(f"kernels_matrix/{name} ")), None)

    def test_a_median_below_with_ranges_apart_is_slower(self):
        status, out, _ = self.compared(saved(a=[0.5, 0.52, 0.48], b=[0.3, 0.3, 0.3]),
                                       saved(a=[0.4, 0.42, 0.41], b=[0.3, 0.3, 0.3]))
        self.assertEqual(status, 1)
        self.assertRegex(self.row(out, "a"), r"50\.0 \(48\.0 – 52\.0\) +41\.0 \(40\.0 – 42\.0\) +-18 % +reading +slower$")
        self.assertIsNone(self.row(out, "b"))
        self.assertIn("2 compared, 1 slower, 0 gone, 0 new", out)

    def test_ranges_that_overlap_are_told_and_not_flagged(self):
        status, out, _ = self.compared(saved(a=[0.5, 0.52, 0.40]), saved(a=[0.4, 0.42, 0.41]))
        self.assertEqual(status, 0)
        self.assertRegex(self.row(out, "a"), r"slower\? ranges overlap$")

    def test_a_tenth_is_not_more_than_a_tenth(self):
        status, out, _ = self.compared(saved(a=[0.5, 0.5, 0.5]), saved(a=[0.455, 0.455, 0.455]))
        self.assertEqual(status, 0)
        self.assertIsNone(self.row(out, "a"))

    def test_faster_is_told(self):
        status, out, _ = self.compared(saved(a=[0.5, 0.5, 0.5]), saved(a=[0.7, 0.7, 0.7]))
        self.assertEqual(status, 0)
        self.assertRegex(self.row(out, "a"), r"\+40 % +reading +faster$")

    def test_another_adapter_is_refused(self):
        status, out, err = self.compared(saved(a=[0.5] * 3), saved(a=[0.5] * 3, adapter="another"))
        self.assertEqual((status, out), (2, ""))
        self.assertIn("a driver is not another", err)

    def test_a_name_that_is_gone(self):
        status, out, _ = self.compared(saved(a=[0.5] * 3, b=[0.5] * 3), saved(a=[0.5] * 3, c=[0.2] * 3))
        self.assertEqual(status, 1)
        self.assertIn("gone: kernels_matrix/b\n", out)
        self.assertIn("new: kernels_matrix/c: 20.0", out)

    def test_what_was_not_asked_for_is_not_gone(self):
        status, out, _ = self.compared(saved(a=[0.5] * 3, b=[0.5] * 3), saved(part="matrix/a", a=[0.5] * 3))
        self.assertEqual(status, 0)
        self.assertNotIn("gone:", out)

    def test_other_files_are_no_answer(self):
        good = saved(a=[0.5] * 3)
        for bad in ["", "[]", "{}", {**good, "figures": {"kernels_matrix/a": {}}}]:
            status, out, err = self.compared(good, bad)
            self.assertEqual((status, out), (2, ""), bad)
            self.assertIn("not a file of --save", err)


class Summarise(unittest.TestCase):
    def test_the_ratio_that_binds(self):
        runs = [run({"a": ratio}, by="of_flops") for ratio in (0.3, 0.9, 0.4)]
        figure = regress.summarise(runs)["figures"]["kernels_matrix/a"]
        self.assertEqual(figure["ratio"], {"median": 0.4, "least": 0.3, "most": 0.9})
        self.assertEqual(figure["bound"], "multiply-adds")

    def test_nothing_and_several_adapters_are_no_answer(self):
        for runs in ([run({})], [run({"a": 1.0}), run({"a": 1.0}, adapter="another")]):
            with self.assertRaises(regress.Unanswerable):
                regress.summarise(runs)


if __name__ == "__main__":
    unittest.main()

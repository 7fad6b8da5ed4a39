"""Tests of the Python programs of tools/bench: tables, comparison, cost model, Google Benchmark's results."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

import bench
import cost_model
import google_benchmark
import report
import stragglers


def row(name, **values):
    return report.Row(name.partition("/")[0], name, "GB/s", "", {
        metric: {"median": value[0], "min": value[1], "max": value[2]} for metric, value in values.items()})


def report_of(*rows):
    made = report.Report()
    made.rows = list(rows)
    return made


EXAMPLE = report.Row("dense", "dense/push/1MiB/depth8/clients1", "GB/s", "s/GB",
                    {"rate": [3.5, 4, 3.25], "client_cpu": [0.3, 0.25, 0.2], "ratio": [0.875, 1, 0.75]})
SHORT = report.Row("train", "train/x", "samples/s", "", {"rate": [12000, 13000, 12345]})


class Statistics(unittest.TestCase):
    def test_a_spread_is_the_middle_value_and_the_range(self):
        self.assertEqual(report.spread_of([9, 1, 4, 7, 2]), (4, 1, 9))
        self.assertEqual(report.spread_of([8, 2, 4, 100]).median, 6)
        self.assertEqual(report.spread_of([5]), (5, 5, 5))

    def test_files_of_before_have_spreads_already(self):
        self.assertEqual(report.spread_of({"median": 4, "min": 1, "max": 9}), (4, 1, 9))

    def test_numbers_have_three_significant_digits(self):
        for value, text in ((0, "0"), (0.04567, "0.0457"), (4.054, "4.05"), (16.44, "16.4"), (135.2, "135"),
                            (2870.4, "2870"), (-1.5, "-1.50")):
            self.assertEqual(report.number_text(value), text)


class Reports(unittest.TestCase):
    GOOD = '{"bench": "dense", "name": "dense/x", "unit": "GB/s", "values": {"rate": [1, 2, 3]}}'

    def test_lines_become_the_machine_and_rows(self):
        read = report.parse_report(['{"machine": {"CPU": "fast"}}', self.GOOD, ""], "x")
        self.assertEqual(read.machine, {"CPU": "fast"})
        self.assertEqual([(each.bench, each.name, each.values["rate"].median) for each in read.rows],
                         [("dense", "dense/x", 2)])

    def test_the_line_that_is_no_row_is_named(self):
        for lines, words in (([self.GOOD, '{"bench": 3}'], "old.json:2:"), ([self.GOOD, "nonsense"], "old.json:2:"),
                             ([self.GOOD, "[]"], "old.json:2:"), ([], "no rows")):
            with self.assertRaisesRegex(report.Failure, words):
                report.parse_report(lines, "old.json")

    def test_the_file_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(report.Failure, "/no/such: cannot be read"):
            report.read_report("/no/such")

    def test_metrics_have_keys_and_titles_of_their_own(self):
        for column in (0, 1):
            self.assertEqual(len({metric[column] for metric in report.METRICS}), len(report.METRICS))


class Tables(unittest.TestCase):
    def test_columns_are_aligned_and_those_that_no_row_has_are_left_out(self):
        self.assertEqual(
            report.to_table([EXAMPLE, SHORT]),
            "                                      unit                 rate  client             x limit  CPU unit\n"
            "dense/push/1MiB/depth8/clients1       GB/s     3.50 (3.25-4.00)   0.250  0.875 (0.750-1.00)      s/GB\n"
            "train/x                          samples/s  12345 (12000-13000)                                      \n")
        self.assertEqual(report.to_table([]), "")

    def test_markdown_has_a_table_for_each_bench_and_names_the_machine(self):
        made = report_of(EXAMPLE, SHORT)
        made.machine = {"cores": "2", "CPU": "fast"}
        self.assertEqual(
            report.to_markdown(made), "Measured on: CPU fast; cores 2.\n\n"
            "| dense | unit | rate | client | x limit | CPU unit |\n|---|---:|---:|---:|---:|---:|\n"
            "| dense/push/1MiB/depth8/clients1 | GB/s | 3.50 (3.25-4.00) | 0.250 | 0.875 (0.750-1.00) | s/GB |\n\n"
            "| train | unit | rate |\n|---|---:|---:|\n| train/x | samples/s | 12345 (12000-13000) |\n")


class Comparison(unittest.TestCase):
    def judge(self, metric, before, after):
        differences = report.compare(report_of(row("dense/x", **{metric: before})), report_of(row("dense/x", **{metric: after})))
        self.assertEqual([difference.metric for difference in differences], [metric])
        return differences[0].verdict

    def test_a_rate_out_of_its_range_is_worse_or_better(self):
        self.assertEqual(self.judge("rate", (4, 3.8, 4.2), (3, 2.9, 3.7)), "worse")
        self.assertEqual(self.judge("rate", (3, 2.9, 3.7), (4, 3.8, 4.2)), "better")

    def test_more_cpu_or_latency_is_worse_and_less_is_better(self):
        self.assertEqual(self.judge("client_cpu", (1, 0.9, 1.1), (2, 1.9, 2.1)), "worse")
        self.assertEqual(self.judge("p50_us", (100, 90, 110), (50, 40, 60)), "better")

    def test_a_difference_within_overlapping_ranges_is_noise(self):
        self.assertEqual(self.judge("rate", (4, 2.9, 4.2), (3, 2.8, 3.2)), "noise")
        self.assertEqual(self.judge("rate", (3, 2.9, 4.2), (4, 3.8, 4.3)), "noise")
        self.assertEqual(self.judge("rate", (4, 3, 5), (3, 2, 3)), "noise")  # They touch.

    def test_less_than_five_percent_is_the_same_even_if_ranges_do_not_overlap(self):
        self.assertEqual(self.judge("rate", (1.00, 0.999, 1.001), (0.96, 0.959, 0.961)), "same")
        self.assertEqual(self.judge("rate", (1.00, 0.999, 1.001), (0.94, 0.939, 0.941)), "worse")

    def test_the_ratio_to_the_limit_counts_where_both_runs_have_one(self):
        # The machine was half as fast, the ratio stayed.
        before = report_of(row("dense/x", rate=(4, 4, 4), ratio=(0.9, 0.88, 0.92)))
        differences = report.compare(before, report_of(row("dense/x", rate=(2, 2, 2), ratio=(0.9, 0.88, 0.92))))
        self.assertEqual([(each.metric, each.verdict) for each in differences], [("ratio", "same")])
        differences = report.compare(before, report_of(row("dense/x", rate=(2, 2, 2))))
        self.assertEqual([(each.metric, each.verdict) for each in differences], [("rate", "worse")])

    def test_rows_that_are_missing_or_new_are_named_and_count_as_neither(self):
        value = {"rate": (4, 4, 4)}
        differences = report.compare(report_of(row("dense/a", **value), row("dense/b", **value)),
                                    report_of(row("dense/b", **value), row("dense/c", **value)))
        self.assertEqual([(each.name, each.verdict) for each in differences],
                         [("dense/a", "missing"), ("dense/b", "same"), ("dense/c", "new")])
        text = report.comparison_text(differences)
        self.assertIn("missing  dense/a\n", text)
        self.assertIn("new      dense/c\n", text)

    def test_benches_that_were_not_run_again_are_left_out(self):
        value = {"rate": (4, 4, 4)}
        self.assertEqual(len(report.compare(report_of(row("dense/a", **value), row("train/a", **value)),
                                           report_of(row("dense/a", **value)))), 1)

    def test_the_text_says_what_is_worse_and_counts_the_rest(self):
        differences = report.compare(report_of(row("dense/a", rate=(4, 3.9, 4.1)), row("dense/b", rate=(4, 3, 4.1))),
                                    report_of(row("dense/a", rate=(2, 1.9, 2.1)), row("dense/b", rate=(3.5, 3, 4))))
        self.assertEqual(report.comparison_text(differences),
                         "WORSE    dense/a: rate 4.00 (3.90-4.10) -> 2.00 (1.90-2.10), x 0.500\n"
                         "1 worse, 0 better, 0 the same, 1 within noise, 0 missing, 0 new\n")


PUSH = cost_model.Cost(20e-6, 0.3e-9, 50e-9)
PULL = cost_model.Cost(10e-6, 0.2e-9, 30e-9)
SIZES = {"4KiB": 4096, "64KiB": 65536, "1MiB": 1 << 20, "4MiB": 4 << 20}


def measured(push, pull):
    """Rows as `dense` and `embedding` write them, of operations with known costs; the server takes twice as much."""
    made = report.Report()

    def add(name, seconds, amount):
        made.rows.append(report.Row("dense", name, "GB/s", "s/GB",
                                   {"client_cpu": [seconds / amount], "server_cpu": [2 * seconds / amount]}))

    for text, size in SIZES.items():
        for operation, cost in (("push", push), ("pull", pull)):
            add("dense/%s/%s/depth8/clients1" % (operation, text), cost.of(cost_model.messages_of(size), size), 1e-9 * size)
    size = 4096 * (8 + 64)
    add("embedding/push/1000Krows/dim16/depth4", push.of(1, size, 4096), 1e-6 * 4096)
    add("embedding/pull/1000Krows/dim16/depth4", pull.of(1, size, 4096), 1e-6 * 4096)
    add("dense/push-pull/64KiB/depth8/clients1", push.of(1, 65536) + pull.of(1, 65536), 2e-9 * 65536)
    return made


class CostModel(unittest.TestCase):
    def test_the_costs_that_made_the_points_are_found(self):
        truth = cost_model.Cost(20e-6, 0.3e-9, 0)
        cost = cost_model.fit_cost([(cost_model.messages_of(size), size, truth.of(cost_model.messages_of(size), size))
                               for size in SIZES.values()])
        # The normal equations lose about the square of the columns' condition (1e3) to the double's 1e-16.
        self.assertAlmostEqual(cost.per_message / truth.per_message, 1, delta=1e-9)
        self.assertAlmostEqual(cost.per_byte / truth.per_byte, 1, delta=1e-9)

    def test_no_cost_is_below_zero(self):
        falling = cost_model.fit_cost([(1, 1e3, 2e-3), (1, 1e6, 1e-3)])
        self.assertEqual(falling.per_byte, 0)
        self.assertGreater(falling.per_message, 0)
        steep = cost_model.fit_cost([(1, 1e3, 1e-7), (1, 1e6, 1e-3)])
        self.assertEqual(steep.per_message, 0)
        self.assertGreater(steep.per_byte, 0)

    def test_messages_are_cut_at_two_mebibytes(self):
        self.assertEqual([cost_model.messages_of(size) for size in (0, 2 << 20, (2 << 20) + 1, 64 << 20)], [1, 1, 2, 32])

    def test_both_sides_costs_are_found_and_those_of_keys(self):
        model = cost_model.fit_model(measured(PUSH, PULL))
        for (operation, side, field), expected in {("push", "client", "per_byte"): PUSH.per_byte,
                                                   ("push", "server", "per_message"): 2 * PUSH.per_message,
                                                   ("pull", "client", "per_key"): PULL.per_key,
                                                   ("pull", "server", "per_key"): 2 * PULL.per_key}.items():
            self.assertAlmostEqual(getattr(model[operation, side], field) / expected, 1, delta=1e-9)

    def test_rows_that_it_needs_are_named(self):
        with self.assertRaisesRegex(report.Failure, "dense/push/{4KiB,64KiB,1MiB,4MiB}/depth8/clients1"):
            cost_model.fit_model(report_of(measured(PUSH, PULL).rows[0]))

    def test_links_and_cores_are_divided_among_workers_and_servers(self):
        model = {(operation, side): cost_model.Cost(0, cost, 0) for (operation, side), cost in {
            ("push", "client"): 1e-9, ("push", "server"): 2e-9, ("pull", "client"): 3e-9,
            ("pull", "server"): 4e-9}.items()}
        limits, memory = cost_model.predict(model, dense_bytes=1e8, link=1e10, cores=10)
        # A server gets 100 workers * 5 MB = 500 MB a step and spends (2 + 4) ns on each byte of push and pull.
        for limit, expected in (("a server's link", 20), ("a server's cores", 10 / (500e6 * 6e-9)),
                                ("a worker's link", 100), ("a worker's cores", 10 / (100e6 * 4e-9))):
            self.assertAlmostEqual(limits[limit], expected, delta=1e-9)
        self.assertAlmostEqual(memory, 100 * 4 * 5e6, delta=1)

    def test_points_that_were_not_fitted_are_checked_or_named(self):
        text = cost_model.model_markdown(measured(PUSH, PULL))
        # 3 * (20 + 10 + (0.3 + 0.2) * 65.536) us.
        self.assertIn("| dense/push-pull/64KiB/depth8/clients1 | 188 | 188 | +0 % |", text)
        self.assertIn("| dense/push/1MiB/depth8/clients4 | not measured | 1004 |  |", text)


def of_google(*runs):
    made = report.Report()
    for line in google_benchmark.lines_of_google_benchmark("optimizer", {"benchmarks": list(runs)}):
        report.add_line(made, line)
    return made.rows


class GoogleBenchmark(unittest.TestCase):
    def test_repetitions_are_runs_and_plain_loops_limits(self):
        def run(name, items, family):
            return {"name": name, "run_name": name, "run_type": "iteration", "items_per_second": items,
                    "family_index": family}

        rows = of_google(run("PlainAdam/16", 8e8, 1), run("Update/adam/16", 4e8, 0), run("PlainAdam/16", 2e8, 1),
                         run("Update/adam/16", 2e8, 0),
                         {"name": "Update/adam/16_mean", "run_name": "Update/adam/16", "run_type": "aggregate",
                          "items_per_second": 3e8},
                         {"name": "Find", "run_name": "Find", "run_type": "iteration", "real_time": 0.5,
                          "time_unit": "us", "family_index": 2})
        self.assertEqual([each.name for each in rows],
                         ["optimizer/Update/adam/16", "optimizer/PlainAdam/16", "optimizer/Find"])
        self.assertAlmostEqual(rows[0].values["rate"].median, 300)
        self.assertAlmostEqual(rows[0].values["limit_rate"].median, 500)
        self.assertEqual(rows[0].values["ratio"][1:], (0.5, 1))
        self.assertNotIn("ratio", rows[1].values)
        self.assertAlmostEqual(rows[2].values["rate"].median, 2)  # 500 ns each.

    def test_the_plain_loop_that_took_turns_is_the_limit(self):
        rows = of_google({"run_name": "Table/sgd/64/manual_time", "items_per_second": 3e8, "plain_per_second": 4e8,
                          "family_index": 0},
                         {"run_name": "PlainSgd/64/manual_time", "items_per_second": 9e8, "family_index": 1})
        self.assertAlmostEqual(rows[0].values["limit_rate"].median, 400)
        self.assertAlmostEqual(rows[0].values["ratio"].median, 0.75)
        self.assertNotIn("ratio", rows[1].values)

    def test_a_benchmarks_own_error_is_said(self):
        with self.assertRaisesRegex(report.Failure, "Find/8: no memory"):
            of_google({"name": "Find/8", "run_name": "Find/8", "run_type": "iteration", "error_occurred": True,
                       "error_message": "no memory"})


class Front(unittest.TestCase):
    """With a program in place of `bench` that has one suite."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = self.file("bench", """#!/bin/sh
case " $* " in
*" --list "*) echo "dense  pushes"; exit 0 ;;
*" sparse "*) exit 2 ;;
esac
echo '{"machine": {"runs": "1"}}'
case " $* " in *" --machine "*) exit 0 ;; esac
echo '{"bench": "dense", "name": "dense/a", "unit": "GB/s", "values": {"rate": [4, 4.1]}}'
case " $* " in *" --break "*) exit 1 ;; esac
""")
        self.file("index_benchmark", """#!/bin/sh
for argument; do case $argument in --benchmark_out=*) out=${argument#*=} ;; esac; done
echo '{"benchmarks": [{"run_name": "Find/8", "items_per_second": 2e6}]}' >$out
""")

    def file(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, 0o755)
        return path

    def run_with(self, *arguments):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = bench.main(["--program", self.program] + list(arguments))
        return code, out.getvalue(), error.getvalue()

    def test_rows_go_to_tables_and_to_the_file(self):
        path = os.path.join(self.folder.name, "rows")
        code, out, _ = self.run_with("dense", "--json", path)
        self.assertEqual(code, 0)
        self.assertIn("dense/a  GB/s  4.05 (4.00-4.10)", out)
        self.assertEqual(report.read_report(path).rows[0].values["rate"], (4.05, 4, 4.1))

    def test_programs_of_google_benchmark_run_by_name(self):
        code, out, _ = self.run_with("index")
        self.assertEqual(code, 0)
        self.assertIn("index/Find/8", out)
        self.assertNotIn("dense/a", out)
        code, out, error = self.run_with("optimizer")
        self.assertEqual(code, 1)
        self.assertIn("optimizer_benchmark: no such program", error)

    def test_the_python_client_is_measured_alone_by_a_script_whose_rows_are_like_all_others(self):
        python = self.file("python", """#!/bin/sh
echo "$*" >"$(dirname "$0")/arguments"
echo '{"bench": "python", "name": "python/call", "unit": "", "values": {"p50_us": [30, 40, 50], "added_us": [7, 9, 8]}}'
""")
        code, out, _ = self.run_with("python", "--python", python, "--only", "cpp", "--runs", "3")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"p50 us +added us")
        self.assertRegex(out, r"python/call +40\.0 +8\.00")
        with open(os.path.join(self.folder.name, "arguments"), encoding="utf-8") as file:
            arguments = file.read()
        self.assertRegex(arguments, r"python_client\.py --programs \S+ --runs 3 --window-ms 400 --only cpp$")
        code, _, error = self.run_with("python", "dense")
        self.assertEqual(code, 2)
        self.assertIn("python is measured alone", error)
        failing = self.file("failing", "#!/bin/sh\nexit 3\n")
        code, _, error = self.run_with("python", "--python", failing)
        self.assertEqual(code, 1)
        self.assertIn("ended with exit code 3", error)

    def test_what_stragglers_cost_is_measured_alone_by_a_script_that_gets_its_flags(self):
        python = self.file("python", """#!/bin/sh
echo "$*" >"$(dirname "$0")/arguments"
echo '{"bench": "stragglers", "name": "stragglers/slow/sync", "unit": "trainings/h", "values": {"rate": [90], "limit_rate": [100], "ratio": [0.9]}}'
""")
        code, out, _ = self.run_with("stragglers", "--python", python, "--choices", "sync", "--root", "/r", "--runs", "2")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"stragglers/slow/sync +trainings/h +90\.0 .* 0\.900")
        with open(os.path.join(self.folder.name, "arguments"), encoding="utf-8") as file:
            arguments = file.read()
        self.assertRegex(arguments, r"stragglers\.py --programs \S+ --runs 2 --choices sync$")
        self.assertEqual(self.run_with("stragglers", "index")[0], 2)

    def test_a_regression_and_a_failure_are_exit_code_1_and_a_wrong_name_2(self):
        before = self.file("before", '{"machine": {"runs": "1"}}\n'
                           '{"bench": "dense", "name": "dense/a", "unit": "GB/s", "values": {"rate": [8, 9]}}\n')
        code, out, _ = self.run_with("dense", "--compare", before)
        self.assertEqual(code, 1)
        self.assertIn("WORSE    dense/a: rate", out)
        self.assertEqual(self.run_with("dense", "--break")[0], 1)
        self.assertEqual(self.run_with("sparse")[0], 2)
        self.assertEqual(self.run_with("dense", "--compare", "/no/such")[0], 1)


class Stragglers(unittest.TestCase):
    def test_the_loss_is_that_of_the_newest_samples_weighted(self):
        loss = stragglers.Loss(100)
        loss.add("a", 60, 1.0)
        self.assertIsNone(loss.mean())
        loss.add("b", 40, 0.5)
        self.assertAlmostEqual(loss.mean(), 0.8)
        loss.add("b", 40, 0.1)  # A report that says nothing new.
        self.assertAlmostEqual(loss.mean(), 0.8)
        loss.add("a", 160, 0.2)
        self.assertAlmostEqual(loss.mean(), 0.2)

    def test_the_limit_is_the_rate_of_equal_workers_for_the_capacity_that_is_left(self):
        rows = {row["name"]: row for row in stragglers.rows_of({
            ("equal", "sync"): [10, 20], ("slow", "sync"): [12.5, 50], ("killed", "sync"): [10, 20]})}
        self.assertEqual(rows["stragglers/equal/sync"]["values"], {"rate": [360, 180]})
        slow = rows["stragglers/slow/sync"]["values"]
        self.assertAlmostEqual(slow["limit_rate"][0], 288)
        self.assertAlmostEqual(slow["ratio"][0], 1)
        self.assertAlmostEqual(slow["ratio"][1], 0.5)
        self.assertEqual(rows["stragglers/killed/sync"]["values"]["ratio"], [1, 1])

    def test_a_ps_is_drained_and_filled_in_turns_each_when_the_turn_before_is_over(self):
        class Call:
            def __init__(self, *args):
                self.args, self.returncode = args, None

            def poll(self):
                return self.returncode

            def wait(self):
                self.returncode = 0

        class Cluster:
            calls = []

            def psctl(self, *verb):
                self.calls.append(Call(*verb))
                return self.calls[-1]

        cluster = Cluster()
        drains = stragglers.Drains(cluster)
        drains.turn()
        drains.turn()
        self.assertEqual([call.args for call in cluster.calls], [("drain", "1")])
        cluster.calls[0].returncode = 0
        drains.turn()
        drains.turn()
        self.assertEqual([call.args for call in cluster.calls[1:]], [("drain", "1", "--undo"), ("rebalance",)])
        cluster.calls[-1].returncode = 1
        with self.assertRaisesRegex(RuntimeError, "rebalance"):
            drains.turn()
        self.assertEqual(drains.turns, 2)

    def test_choices_and_situations_are_those_that_there_are(self):
        options = stragglers.parse_arguments(["--choices", "sync,async", "--situations", "slow"])
        self.assertEqual((options.choices, options.situations), (["async", "sync"], ["slow"]))
        with contextlib.redirect_stderr(io.StringIO()) as error, self.assertRaises(SystemExit):
            stragglers.parse_arguments(["--choices", "fast"])
        self.assertIn("fast is none of async, bounded", error.getvalue())

    def test_a_throttled_process_runs_for_its_share_and_goes_on_in_the_end(self):
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
            throttle = stragglers.Throttle(lambda: [process.pid], lambda at: 0.1)
            stopped = False
            while not stopped:
                stopped = state_of(process.pid) == "T"
            throttle.stop()
            self.assertNotEqual(state_of(process.pid), "T")
            process.kill()


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    unittest.main()

// tools/gpu_check in a folder as it makes them, with programs that print what the real ones do with a device, without
// one, and when something fails. The tables of steps are made by the real script.
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// The test programs: each stage runs some of one's tests.
constexpr const char* kTests[] = {"kernels_test", "training_test", "worker_test"};

// Of Google Test, shortened.
constexpr char kPassed[] = R"sh(echo '[       OK ] Backends/MatMulTest.Multiplies/cuda_bf16 (3 ms)
[       OK ] DeviceTest.ALibraryThatIsNotThereIsNamed (0 ms)
[==========] 14 tests from 1 test suite ran. (31 ms total)
[  PASSED  ] 14 tests.')sh";
constexpr char kSkipped[] = R"sh(echo 'cuda: there is no CUDA driver here (libcuda.so.1)\""
[  SKIPPED ] Backends/MatMulTest.Multiplies/cuda_bf16 (0 ms)
[==========] 14 tests from 1 test suite ran. (1 ms total)
[  PASSED  ] 2 tests.
[  SKIPPED ] 12 tests, listed below:')sh";
constexpr char kFailed[] = R"sh(echo '[       OK ] Backends/MatMulTest.Multiplies/cuda (3 ms)
[  FAILED  ] Backends/MatMulTest.Multiplies/cuda_bf16 (3 ms)
[==========] 14 tests from 1 test suite ran. (31 ms total)
[  PASSED  ] 13 tests.
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Backends/MatMulTest.Multiplies/cuda_bf16'; exit 1)sh";

// Of Google Benchmark: "$out" is the file that it was told to write.
constexpr char kKernels[] = R"sh(echo "cuda:0 (A device): the device's own copy moves 4012 GB/s"
out=$(printf '%s\n' "$@" | sed -n 's/^--benchmark_out=//p')
cat >"$out" <<END
{
  "context": {
    "executable": "cuda_benchmark"
  },
  "benchmarks": [
    {
      "name": "BM_ScatterFields/skewed:1/ordered:0/real_time",
      "run_name": "BM_ScatterFields/skewed:1/ordered:0/real_time",
      "bytes/s": 3.3000000000000000e+12,
      "percent_of_copy": 8.2253200000000000e+01
    },
    {
      "name": "BM_MatMul/m:65536/n:1024/k:512/real_time",
      "run_name": "BM_MatMul/m:65536/n:1024/k:512/real_time",
      "FLOP/s": 4.8120000000000000e+13,
      "bytes/s": 1.0000000000000000e+11,
      "percent_of_copy": 7.5317423984550913e-01
    })sh";
constexpr char kKernelsEnd[] = "\n  ]\n}\nEND\n";
constexpr char kKernelFailed[] = R"sh(,
    {
      "name": "BM_Dropout/real_time",
      "error_occurred": true,
      "error_message": "on cuda:0 (A device): Dropout [65536]: an illegal memory access",
      "iterations": 1
    })sh";

// Of bench: a row into the file behind --json.
constexpr char kSteps[] = R"sh(for a in "$@"; do [ "$last" != --json ] || json=$a; last=$a; done
case " $* " in
*" step "*) name=step/cuda/deepfm/256-128/batch16384/f32/torch; bench=step
  echo 'bench: step: without PyTorch --device cuda --precision f32 --compile: PyTorch: error: no torch.compile' >&2
  echo 'bench: no time left for step/cuda/a' >&2
  echo 'bench: no time left for step/cuda/b' >&2 ;;
*) name=train/cuda/deepfm/256-128/batch8192/1ps/1worker; bench=train ;;
esac
echo '{"machine": {"CPU": "A CPU"}}' >"$json"
printf '{"bench":"%s","name":"%s","unit":"ksamples/s","cpu_unit":"","runs":3,"values":{' $bench $name >>"$json"
printf '"rate":{"median":2500,"min":2400,"max":2600},"limit_rate":{"median":1000,"min":900,"max":1100},' >>"$json"
printf '"ratio":{"median":2.5,"min":2.4,"max":2.6}}}\n' >>"$json")sh";

constexpr char kTraining[] = R"sh(for a in "$@"; do [ "$last" != --summary ] || out=$a; last=$a; done
loss=0.5
[[ $* != *precision=bf16* ]] || loss=0.501
printf '{\n  "samples_per_second": 123456,\n  "test": {\n    "samples": 9,\n    "loss": %s,\n    "auc": 0.8\n  }\n}\n' "$loss" >"$out")sh";

// Of compute-sanitizer, which runs a program.
constexpr char kSanitizer[] = R"sh(echo '[       OK ] Models/GoldenTest.TenStepsOnCuda/Fm (24 ms)'
[ "$2" != racecheck ] || { echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'; exit 9; }
echo '========= ERROR SUMMARY: 0 errors')sh";

std::string Folder() { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/check"); }

void WriteProgram(const std::string& name, const std::string& text) {
  int exit_code = 0;
  const std::string path = absl::StrCat(Folder(), "/bin/", name);
  RunShell(absl::StrCat("cat >", path, " <<'PROGRAM'\n#!/bin/bash\n", text, "\nPROGRAM\nchmod +x ", path), &exit_code);
  ASSERT_EQ(exit_code, 0) << path;
}

// A kernels_test that does `text` for the tests of `suite`, and passes the others.
void WriteKernelsTest(const std::string& suite, const std::string& text) {
  WriteProgram("kernels_test", absl::StrCat("if [[ \"$*\" == *'", suite, "'* ]]; then\n", text, "\nfi\n", kPassed));
}

// A folder where everything goes well on a device.
void MakeFolder() {
  int exit_code = 0;
  RunShell(absl::StrCat("rm -rf ", Folder(), " && mkdir -p ", Folder(), "/bin ", Folder(),
                        "/tools/bench && cp -L tools/gpu_check ", Folder(), " && cp -L tools/bench/*.py ", Folder(),
                        "/tools/bench"),
           &exit_code);
  ASSERT_EQ(exit_code, 0);
  for (const char* test : kTests) WriteProgram(test, kPassed);
  WriteProgram("cuda_benchmark", absl::StrCat(kKernels, kKernelsEnd));
  WriteProgram("psctl", kTraining);
  WriteProgram("bench", kSteps);
}

// Runs it from another folder; what it says.
std::string Output(int expected_exit_code, const std::string& arguments = "", const std::string& environment = "") {
  int exit_code = 0;
  const std::string output =
      RunShell(absl::StrCat("cd / && TMPDIR=", std::getenv("TEST_TMPDIR"),
                            " CUBLAS_DIR= COMPUTE_SANITIZER= ", environment, " ", Folder(), "/gpu_check ", arguments),
               &exit_code);
  EXPECT_EQ(exit_code, expected_exit_code) << output;
  return output;
}

TEST(GpuCheck, PutsAllOfADevicesResultsIntoOneTable) {
  MakeFolder();
  const std::string output = Output(0);
  for (const char* name : {"activation_test", "golden_test", "trainer_test", "device_test"}) {
    EXPECT_THAT(output, ContainsRegex(absl::StrCat(name, " +ok +[0-9]+ s  14 passed, 0 failed, 0 skipped\n")));
  }
  for (const char* name :
       {"kernels", "learning, cpu", "learning, tf32", "training, 2 ps 4 workers", "steps, 1 ps 1 worker", "steps"}) {
    EXPECT_THAT(output, ContainsRegex(absl::StrCat("\n", name, " +ok +[0-9]+ s")));
  }
  EXPECT_THAT(output, ContainsRegex("\npython +(ok|python3 has no PyTorch that sees a device\n)"));
  EXPECT_THAT(output, Not(HasSubstr("nothing ran")));
  EXPECT_THAT(output, HasSubstr("own copy moves 4012 GB/s\n"));
  EXPECT_THAT(output, ContainsRegex("BM_ScatterFields/skewed:1/ordered:0 +82.3 % of the copy\n"));
  EXPECT_THAT(output, ContainsRegex("BM_MatMul/m:65536/n:1024/k:512 +0.8 % of the copy +48.1 TFLOP/s\n"));
  EXPECT_THAT(output,
              HasSubstr("| step/cuda/deepfm/256-128/batch16384/f32/torch | ksamples/s | 2500 (2400-2600) | 1000 "
                        "| 2.50 (2.40-2.60) |\n"));
  EXPECT_THAT(output, HasSubstr("| train/cuda/deepfm/256-128/batch8192/1ps/1worker | "));
  EXPECT_THAT(output,
              HasSubstr("without PyTorch --device cuda --precision f32 --compile: PyTorch: error: no torch.co"));
  EXPECT_THAT(output, HasSubstr("no time for 2 cases of steps\n"));
  EXPECT_THAT(output, HasSubstr("\"samples_per_second\": 123456,"));
}

TEST(GpuCheck, WithoutADeviceItSaysOfEachStageWhyNothingRanOnOneAndFails) {
  MakeFolder();
  for (const char* test : kTests) WriteProgram(test, kSkipped);
  WriteProgram("cuda_benchmark", "echo 'skipped: NOT_FOUND: there is no CUDA driver here (libcuda.so.1)'");
  const std::string worker = "echo 'it fails: worker.device is cuda, but there is no CUDA driver here' >&2; exit 1";
  WriteProgram("psctl", worker);
  WriteProgram("bench", worker);
  const std::string output = Output(1);
  const std::string reason = "\n  nothing ran on a device: there is no CUDA driver here \\(libcuda.so.1\\)\n";
  EXPECT_THAT(output, ContainsRegex("matmul_test +no device +[0-9]+ s  2 passed, 0 failed, 12 skipped" + reason));
  EXPECT_THAT(output, ContainsRegex("device_test +no device +[0-9]+ s  2 passed, 0 failed, 12 skipped" + reason));
  EXPECT_THAT(output, ContainsRegex("kernels +no device +[0-9]+ s +" + reason));
  for (const char* name : {"training, 2 ps 4 workers", "steps, 1 ps 1 worker", "steps"}) {
    EXPECT_THAT(output, ContainsRegex(absl::StrCat("\n", name, " +FAILED \\(1\\) +[0-9]+ s[^\n]*\n",
                                                   "  nothing ran on a device: worker.device is cuda, but there is")));
  }
  EXPECT_THAT(output, Not(HasSubstr("% of the copy")));
}

TEST(GpuCheck, WithoutCublasItSaysHowToNameIt) {
  MakeFolder();
  EXPECT_THAT(Output(0), Not(HasSubstr("CUBLAS_DIR")));
  WriteProgram("cuda_benchmark",
               "echo 'skipped: FAILED_PRECONDITION: cuBLAS (libcublas.so.13) is not here; it comes with the toolkit'");
  EXPECT_THAT(
      Output(1),
      AllOf(ContainsRegex("kernels +no device +[0-9]+ s +\n  nothing ran on a device: cuBLAS \\(libcublas.so.13"),
            HasSubstr(absl::StrCat("\ncuBLAS was not found: CUBLAS_DIR=FOLDER ", Folder(), "/gpu_check "))));
}

TEST(GpuCheck, ATestAKernelAndAProgramThatFailAreNamed) {
  MakeFolder();
  WriteKernelsTest("*MatMulTest.*cuda*", kFailed);
  EXPECT_THAT(Output(1), AllOf(ContainsRegex("matmul_test +FAILED \\(1\\) +[0-9]+ s  13 passed, 1 failed, 0 skipped\n"),
                               Not(HasSubstr("nothing ran"))));
  MakeFolder();
  WriteProgram("cuda_benchmark", absl::StrCat(kKernels, kKernelFailed, kKernelsEnd));
  EXPECT_THAT(Output(1),
              ContainsRegex("BM_Dropout +FAILED: \"on cuda:0 \\(A device\\): Dropout \\[65536\\]: an illegal"));
  MakeFolder();
  WriteProgram("psctl", "echo 'psctl: worker 0 failed: out of memory' >&2; exit 1");
  EXPECT_THAT(Output(1), ContainsRegex("4 workers +FAILED \\(1\\) +[0-9]+ s  psctl: worker 0 failed: out of memory\n"));
}

TEST(GpuCheck, ADeviceThatLearnsSomethingElseThanTheCpuFails) {
  MakeFolder();
  std::string training = kTraining;
  training.replace(training.find("0.501"), 5, "0.510");
  WriteProgram("psctl", training);
  const std::string output = Output(1);
  EXPECT_THAT(output, HasSubstr("  bf16 learned something else than the CPU: test loss 0.51, and 0.5\n"));
  EXPECT_THAT(output, Not(HasSubstr("tf32 learned")));
  training.replace(training.find("0.510"), 5, "");
  WriteProgram("psctl", training);
  EXPECT_THAT(Output(1), HasSubstr("  bf16 learned something else than the CPU: test loss , and 0.5\n"));
}

TEST(GpuCheck, WhatASanitizerFindsFails) {
  MakeFolder();
  WriteProgram("sanitizer", kSanitizer);
  const std::string output = Output(1, "", absl::StrCat("COMPUTE_SANITIZER=", Folder(), "/bin/sanitizer"));
  EXPECT_THAT(output, ContainsRegex("\nmemcheck +ok +[0-9]+ s"));
  EXPECT_THAT(output, ContainsRegex("\nracecheck +FAILED \\(9\\) +[0-9]+ s  =* RACECHECK SUMMARY: 1 hazard"));
  EXPECT_THAT(output, ContainsRegex("\ninitcheck +ok +[0-9]+ s"));
}

TEST(GpuCheck, WhatDoesNotEndIsEndedAndWhatHasNoTimeLeftIsSaid) {
  MakeFolder();
  WriteKernelsTest("*ActivationTest.*cuda*", "exec tail -f /dev/null");
  // Seconds may have passed before the first stage begins; what has less than 5 is not begun.
  const std::string output = Output(1, "--seconds 8");
  EXPECT_THAT(output, ContainsRegex("activation_test +not in [5-8] s"));
  EXPECT_THAT(output, ContainsRegex("embedding_test +no time left\n"));
  EXPECT_THAT(output, ContainsRegex("\nsteps +no time left\n"));
}

TEST(GpuCheck, OurProgramsFindTheCarriedLibrariesAndCublasAndPythonOnlyItsOwn) {
  MakeFolder();
  int exit_code = 0;
  const std::string python = Folder() + "/path", cublas = Folder() + "/cublas";
  RunShell(absl::StrCat("mkdir ", python, " ", cublas, " && touch ", cublas, "/libcublas.so.13 && printf ",
                        "'#!/bin/sh\\necho \"python $1: ${LD_LIBRARY_PATH-none}\"\\n' >", python,
                        "/python3 && chmod +x ", python, "/python3"),
           &exit_code);
  ASSERT_EQ(exit_code, 0);
  // A long line would be cut in the table.
  WriteProgram("bench", absl::StrCat("folder=", Folder(), R"sh(
for a in "$@"; do [ "$last" != --python ] || python=$a; last=$a; done
echo "bench: ${LD_LIBRARY_PATH//$folder/FOLDER}; $($python script)"; exit 1)sh"));
  const std::string environment = absl::StrCat("PATH=", python, ":$PATH CUBLAS_DIR=", cublas);
  const std::string ours = "bench: FOLDER/lib:FOLDER/cublas";
  EXPECT_THAT(Output(1, "", absl::StrCat("env -u LD_LIBRARY_PATH ", environment)),
              HasSubstr(ours + "; python script: none\n"));
  EXPECT_THAT(Output(1, "", environment + " LD_LIBRARY_PATH='/a b'"), HasSubstr(ours + ":/a b; python script: /a b\n"));
}

TEST(GpuCheck, RefusesWhatItDoesNotKnow) {
  MakeFolder();
  EXPECT_THAT(Output(2, "--fast"), HasSubstr("there is no '--fast'"));
  EXPECT_THAT(Output(2, "--pack"), HasSubstr("--pack needs a file"));
  EXPECT_THAT(Output(2, "--seconds soon"), HasSubstr("--seconds needs a number"));
  EXPECT_THAT(Output(1, "", "CUBLAS_DIR=/nowhere"),
              HasSubstr("CUBLAS_DIR is /nowhere, where there is no libcublas.so.*"));
  const std::string help = Output(0, "--help");
  for (const char* word : {"--pack FILE", "--seconds N", "CUBLAS_DIR", "Exits with 1"})
    EXPECT_THAT(help, HasSubstr(word));
}

}  // namespace
}  // namespace lodestone

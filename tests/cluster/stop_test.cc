// Ps and workers that get SIGTERM, at every phase of their lives: each shuts down cleanly, whatever it was doing.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/cluster/psctl_run.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/common/rpc/reserved_port.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kTimes = 20;

// A ps or worker, read by the test's own thread.
class Process {
 public:
  Process(const std::string& program, const std::string& config, const std::vector<std::string>& sets) {
    std::vector<std::string> argv = {ProjectFile(absl::StrCat(program == "ps" ? "server/" : "worker/", program)),
                                     "--config", config};
    for (const std::string& set : sets) {
      argv.push_back("--set");
      argv.push_back(set);
    }
    child_ = psctl::Child::Start(program, argv).value();
  }
  // Waits until the output holds `text` after so many characters; false if the process ended without it.
  bool WaitForOutput(const std::string& text, size_t after = 0) {
    while (output_.find(text, after) == std::string::npos && child_->output_fd() >= 0) Read(-1);
    return output_.find(text, after) != std::string::npos;
  }
  // Reads until `condition` holds; false if the process ended before that.
  bool Await(const std::function<bool()>& condition) {
    while (!condition()) {
      if (child_->output_fd() < 0) return false;
      Read(5);
    }
    return true;
  }
  // Reads for `ms`, or until the process ends.
  void Run(int ms) {
    for (int i = 0; i < ms && child_->output_fd() >= 0; ++i) Read(1);
  }
  void Signal(int signal) { child_->Signal(signal); }
  // The reader of its output goes, as a `tee` does that gets the same Ctrl-C.
  void CloseOutput() {
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, child_->output_fd());
    close(nothing);
  }
  // Waits for the end. "ended", "failed with exit code 1: …" or "was killed by signal 15…".
  std::string WaitForEnd() {
    while (child_->output_fd() >= 0) Read(-1);
    while (!child_->Reap([](absl::string_view) {})) poll(nullptr, 0, 1);
    const std::string outcome = child_->Outcome();
    return outcome.substr(outcome.find(") ") + 2);
  }
  // What SIGTERM makes of it.
  std::string Stop() {
    Signal(SIGTERM);
    return WaitForEnd();
  }
  const std::string& output() const { return output_; }

 private:
  void Read(int timeout_ms) {
    pollfd wait = {child_->output_fd(), POLLIN, 0};
    poll(&wait, 1, timeout_ms);
    child_->ReadOutput([this](absl::string_view line) { absl::StrAppend(&output_, line, "\n"); });
  }

  std::string output_;
  std::unique_ptr<psctl::Child> child_;
};

// A cluster of two ps at ports of its own, each test's in a folder of its own.
class StopTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = TestFile(testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    config_ = folder_ + "/cluster.yaml";
    std::ofstream(config_) << "cluster: {servers: 2, workers: 1}\n"
                           << "coordinator: {address: '" << first_.address() << "'}\n"
                           << "server: {data_dir: '" << folder_ << "/data'}\n"
                           << "model: {type: linear}\n"
                           << "data: {generated: {train_samples: 20000, test_samples: 100}}\n"
                           << "train: {batch_size: 64}\n";
  }
  std::unique_ptr<Process> Ps(int index, const std::vector<std::string>& more = {}) {
    std::vector<std::string> sets = {absl::StrCat("server.index=", index),
                                     "server.listen=" + (index == 0 ? first_ : second_).address()};
    sets.insert(sets.end(), more.begin(), more.end());
    return std::make_unique<Process>("ps", config_, sets);
  }
  std::unique_ptr<Process> Worker(const std::vector<std::string>& sets = {}) {
    return std::make_unique<Process>("worker", config_, sets);
  }
  // What a ps says of itself, and ps 0 of the cluster; empty while it does not answer.
  static v1::StatusResponse StatusOf(const ReservedPort& ps) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::StatusResponse status;
    const auto stub = v1::Admin::NewStub(MakeChannel(ps.address(), kMessageBytesMax));
    return stub->Status(&context, {}, &status).ok() ? status : v1::StatusResponse();
  }
  // The name of a table that the second ps has.
  std::string TableName() const {
    const v1::StatusResponse status = StatusOf(second_);
    return status.tables().empty() ? "" : status.tables(0).name();
  }
  // Leaves a data_dir with a log and no checkpoint.
  void Use() {
    const auto first = Ps(0), second = Ps(1);
    const auto worker = Worker();
    ASSERT_EQ(worker->WaitForEnd(), "ended") << worker->output();
    for (const auto& ps : {first.get(), second.get()}) {
      ps->Signal(SIGKILL);
      ps->WaitForEnd();
    }
  }

  const ReservedPort first_, second_;
  std::string folder_;
  std::string config_;
};

// Before it looks at signals, SIGTERM does what it does to any process.
auto EndedOrNotBegun() { return AnyOf("ended", StartsWith("was killed by signal 15")); }

TEST_F(StopTest, APsThatHasJustBeenStartedEndsInGoodOrder) {
  for (int i = 0; i < kTimes; ++i) {
    const auto ps = Ps(0);
    ps->Run(2 * i);
    EXPECT_THAT(ps->Stop(), EndedOrNotBegun()) << "after " << 2 * i << " ms:\n" << ps->output();
  }
}

TEST_F(StopTest, APsThatWaitsForTheCoordinatorEndsInGoodOrder) {
  for (int i = 0; i < kTimes; ++i) {
    const auto ps = Ps(1);
    ASSERT_TRUE(ps->WaitForOutput("listens on=")) << ps->output();
    ps->Run(5 * i);
    EXPECT_EQ(ps->Stop(), "ended") << ps->output();
  }
}

TEST_F(StopTest, APsThatWaitsForTheOthersEndsInGoodOrder) {
  for (int i = 0; i < kTimes; ++i) {
    const auto ps = Ps(0);
    ASSERT_TRUE(ps->WaitForOutput("listens on=")) << ps->output();
    ps->Run(5 * i);
    EXPECT_EQ(ps->Stop(), "ended") << ps->output();
  }
}

// It once died of the signal with which it wakes itself, since its recovery ended CANCELLED when that was unblocked.
TEST_F(StopTest, APsWithAUsedDataDirThatGetsReadyDiesOfNoSignalOfItsOwn) {
  Use();
  for (int i = 0; i < kTimes; ++i) {
    const auto ps = Ps(0);
    ASSERT_TRUE(ps->WaitForOutput("listens on=")) << ps->output();
    ps->Run(10 * i);
    EXPECT_EQ(ps->Stop(), "ended") << "after " << 10 * i << " ms:\n" << ps->output();
  }
}

TEST_F(StopTest, APsThatServesAndWritesItsCheckpointEndsInGoodOrder) {
  Use();
  for (int i = 0; i < kTimes; ++i) {
    const auto first = Ps(0), second = Ps(1);
    ASSERT_TRUE(first->WaitForOutput("serves shards=")) << first->output();
    // The first one knows its place from before, and may serve before the second one looks at signals.
    ASSERT_TRUE(second->WaitForOutput("listens on=")) << second->output();
    first->Run(i);
    EXPECT_EQ(first->Stop(), "ended") << first->output();
    EXPECT_EQ(second->Stop(), "ended") << second->output();
  }
}

TEST_F(StopTest, APsInACheckpointThatWasAskedForEndsInGoodOrderAndAnswers) {
  Use();
  const auto first = Ps(0);
  int under_way = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto second = Ps(1);
    ASSERT_TRUE(second->WaitForOutput("serves shards=")) << second->output();
    const std::string name = absl::StrCat("asked-", i);
    grpc::Status answer;
    std::atomic<bool> answered{false};
    std::thread caller([&] {
      grpc::ClientContext context;
      v1::CheckpointRequest request;
      request.set_name(name);
      v1::CheckpointResponse response;
      answer = v1::Admin::NewStub(MakeChannel(second_.address(), kMessageBytesMax))
                   ->Checkpoint(&context, request, &response);
      answered = true;
    });
    const std::string folder = folder_ + "/data/checkpoints/" + name;
    EXPECT_TRUE(second->Await([&] { return answered || std::filesystem::exists(folder); })) << second->output();
    second->Run(i);
    under_way += !answered;
    EXPECT_EQ(second->Stop(), "ended") << "after " << i << " ms:\n" << second->output();
    caller.join();
    EXPECT_THAT(answer.error_code(), AnyOf(grpc::StatusCode::OK, grpc::StatusCode::UNAVAILABLE))
        << "after " << i << " ms: " << answer.error_message();
  }
  std::printf("%d of %d were under way when the signal came\n", under_way, kTimes);
  EXPECT_EQ(first->Stop(), "ended") << first->output();
}

TEST_F(StopTest, APsInARollbackEndsInGoodOrderAndAnswers) {
  Use();
  // The log keeps what a table goes back to.
  const std::vector<std::string> log_only = {"checkpoint.every_ms=0", "checkpoint.at_exit=false"};
  const auto first = Ps(0, log_only);
  int under_way = 0, done = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto second = Ps(1, log_only);
    ASSERT_TRUE(second->WaitForOutput("serves shards=")) << second->output();
    grpc::Status answer;
    std::atomic<bool> asks{false}, answered{false};
    std::thread caller([&] {
      grpc::ClientContext context;
      v1::RollbackRequest request;
      request.set_table(TableName());
      request.set_version(1);
      v1::RollbackResponse response;
      const auto stub = v1::Admin::NewStub(MakeChannel(second_.address(), kMessageBytesMax));
      asks = true;
      answer = stub->Rollback(&context, request, &response);
      answered = true;
    });
    EXPECT_TRUE(second->Await([&] { return asks.load(); })) << second->output();
    second->Run(2 * i);
    under_way += !answered;
    EXPECT_EQ(second->Stop(), "ended") << "after " << 2 * i << " ms:\n" << second->output();
    caller.join();
    done += answer.ok();
    EXPECT_THAT(answer.error_code(),
                AnyOf(grpc::StatusCode::OK, grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED))
        << "after " << 2 * i << " ms: " << answer.error_message();
  }
  std::printf("%d of %d were under way when the signal came, %d ended well\n", under_way, kTimes, done);
  const auto second = Ps(1, log_only);
  ASSERT_TRUE(second->WaitForOutput("serves shards=")) << second->output();
  EXPECT_EQ(second->Stop(), "ended") << second->output();
  EXPECT_EQ(first->Stop(), "ended") << first->output();
}

TEST_F(StopTest, APsUnderLoadEndsInGoodOrderAndItsWorkerGoesOn) {
  std::unique_ptr<Process> ps[] = {Ps(0), Ps(1)};
  const ReservedPort* const ports[] = {&first_, &second_};
  const auto worker = Worker({"train.epochs=100000"});
  for (int i = 0; i < kTimes; ++i) {
    const int index = i % 2;
    ASSERT_TRUE(worker->Await([&] { return StatusOf(*ports[index]).server().pushes() > 0; })) << worker->output();
    ps[index]->Run(3 * i);
    EXPECT_EQ(ps[index]->Stop(), "ended") << "after " << 3 * i << " ms:\n" << ps[index]->output();
    ps[index] = Ps(index);
  }
  ASSERT_TRUE(ps[1]->WaitForOutput("serves shards=")) << ps[1]->output();
  EXPECT_THAT(worker->Stop(), HasSubstr("exit code 143")) << worker->output();
  for (const auto& each : ps) EXPECT_EQ(each->Stop(), "ended") << each->output();
}

TEST_F(StopTest, APsThatCopiesOrFollowsEndsInGoodOrder) {
  const std::vector<std::string> two = {"cluster.replicas=2"};
  const auto first = Ps(0, two);
  const auto worker = Worker({"cluster.replicas=2", "train.epochs=100000"});
  int in_sync = 0;
  for (int i = 0; i < kTimes; ++i) {
    const size_t said = first->output().size();
    const auto second = Ps(1, two);
    ASSERT_TRUE(first->WaitForOutput("is followed by ps=1", said)) << first->output();
    second->Run(3 * i);
    in_sync += StatusOf(first_).replication().shards_in_sync() > 0;
    EXPECT_EQ(second->Stop(), "ended") << "after " << 3 * i << " ms:\n" << second->output();
  }
  std::printf("%d of %d times it held all that its owner had, else it copied\n", in_sync, kTimes);
  EXPECT_THAT(worker->Stop(), HasSubstr("exit code 143")) << worker->output();
  EXPECT_EQ(first->Stop(), "ended") << first->output();
}

// Regression: the first line after that ended a process by SIGPIPE.
TEST_F(StopTest, ProcessesWhoseOutputNothingReadsAnyMoreEndInGoodOrder) {
  const auto first = Ps(0), second = Ps(1);
  const auto worker = Worker({"train.epochs=100000"});
  ASSERT_TRUE(worker->WaitForOutput("data loaded")) << worker->output();
  for (Process* const process : {first.get(), second.get(), worker.get()}) process->CloseOutput();
  worker->Signal(SIGINT);
  // It may not have begun to train yet, and has nothing to say then.
  EXPECT_THAT(worker->WaitForEnd(), AnyOf(HasSubstr("exit code 5"), HasSubstr("exit code 130")));
  EXPECT_EQ(second->Stop(), "ended");
  EXPECT_EQ(first->Stop(), "ended");
}

TEST_F(StopTest, ASecondSignalEndsAPsAtOnce) {
  Use();
  for (int i = 0; i < kTimes; ++i) {
    const auto ps = Ps(0);
    ASSERT_TRUE(ps->WaitForOutput("listens on=")) << ps->output();
    ps->Signal(SIGTERM);
    ASSERT_TRUE(ps->WaitForOutput("stopping signal=SIGTERM")) << ps->output();
    EXPECT_THAT(ps->Stop(), EndedOrNotBegun()) << ps->output();
  }
}

// 143, as of a process that the signal ended.
auto StoppedWorker() { return AnyOf(HasSubstr("exit code 143"), StartsWith("was killed by signal 15")); }

TEST_F(StopTest, AWorkerThatHasJustBeenStartedOrWaitsForTheClusterEndsWith143) {
  for (int i = 0; i < kTimes; ++i) {
    const auto worker = Worker();
    worker->Run(5 * i);
    EXPECT_THAT(worker->Stop(), StoppedWorker()) << "after " << 5 * i << " ms:\n" << worker->output();
  }
}

TEST_F(StopTest, AWorkerThatTrainsAndGetsSigintEvaluatesAndEndsWith5) {
  const auto first = Ps(0), second = Ps(1);
  const auto worker = Worker({"train.epochs=100000"});
  ASSERT_TRUE(worker->WaitForOutput("data loaded")) << worker->output();
  worker->Run(100);
  worker->Signal(SIGINT);
  EXPECT_THAT(worker->WaitForEnd(), HasSubstr("exit code 5")) << worker->output();
  EXPECT_THAT(worker->output(), HasSubstr("evaluated set=test samples=100"));
  EXPECT_THAT(worker->output(), HasSubstr("not all samples were trained: worker 0 trained "));
  EXPECT_EQ(first->Stop(), "ended") << first->output();
  EXPECT_EQ(second->Stop(), "ended") << second->output();
}

// The other worker's samples were once missing without a word, and the exit code was 0.
TEST_F(StopTest, AWorkerWhoseColleagueDiedSaysWhatIsMissingAndEndsWith5) {
  const std::vector<std::string> two = {"cluster.workers=2", "coordinator.lease_ms=1000"};
  const auto first = Ps(0, two), second = Ps(1, two);
  const auto with = [&](const std::string& index, const std::string& epochs) {
    std::vector<std::string> sets = two;
    sets.insert(sets.end(), {"worker.index=" + index, "train.epochs=" + epochs});
    return Worker(sets);
  };
  const auto short_lived = with("1", "100000");
  ASSERT_TRUE(short_lived->WaitForOutput("data loaded")) << short_lived->output();
  short_lived->Run(100);
  short_lived->Signal(SIGKILL);
  short_lived->WaitForEnd();
  const auto worker = with("0", "1");
  EXPECT_THAT(worker->WaitForEnd(), HasSubstr("exit code 5")) << worker->output();
  EXPECT_THAT(worker->output(), HasSubstr("not all samples were trained: worker 1 ("));
  EXPECT_EQ(first->Stop(), "ended") << first->output();
  EXPECT_EQ(second->Stop(), "ended") << second->output();
}

TEST_F(StopTest, AWorkerThatTrainsEndsWith143AndLeavesTheClusterToOthers) {
  const auto first = Ps(0), second = Ps(1);
  for (int i = 0; i < kTimes; ++i) {
    const auto worker = Worker({"train.epochs=100000"});
    ASSERT_TRUE(worker->WaitForOutput("data loaded")) << worker->output();
    worker->Run(3 * i);
    EXPECT_THAT(worker->Stop(), StoppedWorker()) << "after " << 3 * i << " ms:\n" << worker->output();
  }
  EXPECT_EQ(first->Stop(), "ended") << first->output();
  EXPECT_EQ(second->Stop(), "ended") << second->output();
}

TEST_F(StopTest, AWorkerThatEvaluatesEndsWith143) {
  const auto first = Ps(0), second = Ps(1);
  // So that an evaluation takes far longer than this waits.
  const std::vector<std::string> sets = {"model.type=deepfm", "model.embedding_dim=8", "model.hidden=[512, 512]",
                                         "data.generated.train_samples=640", "data.generated.test_samples=100000"};
  for (int i = 0; i < kTimes; ++i) {
    const auto worker = Worker(sets);
    ASSERT_TRUE(worker->WaitForOutput("trained steps=")) << worker->output();
    worker->Run(2 * i);
    EXPECT_THAT(worker->Stop(), HasSubstr("exit code 143")) << "after " << 2 * i << " ms:\n" << worker->output();
  }
  EXPECT_EQ(first->Stop(), "ended") << first->output();
  EXPECT_EQ(second->Stop(), "ended") << second->output();
}

// Its exit code was once 0, as if it had waited to the end.
TEST_F(StopTest, AWorkerThatWaitsForAnothersEvaluationEndsWith143) {
  const std::vector<std::string> two = {"cluster.workers=2", "coordinator.lease_ms=600000",
                                        "coordinator.worker_lease_ms=600000"};
  const auto first = Ps(0, two), second = Ps(1, two);
  const auto with = [&](const std::string& index) {
    std::vector<std::string> sets = two;
    sets.insert(sets.end(), {"worker.index=" + index, "train.sharing=ranges"});
    return Worker(sets);
  };
  const auto evaluator = with("0");
  ASSERT_TRUE(evaluator->WaitForOutput("trained steps=")) << evaluator->output();
  evaluator->Signal(SIGSTOP);  // So that it does not end.
  const auto waiting = with("1");
  const auto waits = [&] {
    const v1::StatusResponse status = StatusOf(first_);
    for (const v1::MemberStatus& worker : status.cluster().workers()) {
      if (worker.index() == 1 && worker.progress().phase() == v1::PHASE_WAITING) return true;
    }
    return false;
  };
  ASSERT_TRUE(waiting->Await(waits)) << waiting->output();
  EXPECT_THAT(waiting->Stop(), HasSubstr("exit code 143")) << waiting->output();
  evaluator->Signal(SIGKILL);
  evaluator->WaitForEnd();
  EXPECT_EQ(first->Stop(), "ended") << first->output();
  EXPECT_EQ(second->Stop(), "ended") << second->output();
}

TEST_F(StopTest, AWorkerThatHoldsARangeEndsWith143AndLeavesItToOthers) {
  const auto first = Ps(0), second = Ps(1);
  for (int i = 0; i < kTimes; ++i) {
    const auto worker = Worker({"train.sharing=ranges", "train.epochs=100000"});
    const auto holds = [&] {
      const v1::StatusResponse status = StatusOf(first_);
      for (const v1::RangeLease& range : status.cluster().ranges().open()) {
        for (const v1::MemberStatus& member : status.cluster().workers()) {
          if (member.alive() && range.holder() == member.incarnation()) return true;
        }
      }
      return false;
    };
    ASSERT_TRUE(worker->Await(holds)) << worker->output();
    worker->Run(3 * i);
    EXPECT_THAT(worker->Stop(), HasSubstr("exit code 143")) << "after " << 3 * i << " ms:\n" << worker->output();
  }
  EXPECT_GT(StatusOf(first_).cluster().ranges().leased_again(), 0u) << "of those that were left";
  EXPECT_EQ(first->Stop(), "ended") << first->output();
  EXPECT_EQ(second->Stop(), "ended") << second->output();
}

}  // namespace
}  // namespace lodestone

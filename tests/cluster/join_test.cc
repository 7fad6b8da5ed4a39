// Processes that are started in any order find each other.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"
#include "tests/common/rpc/reserved_port.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone {
namespace {

// A ps or worker of a cluster whose ps 0 is, or will be, at `coordinator`.
class Process {
 public:
  Process(const std::string& program, const std::string& coordinator, const std::vector<std::string>& arguments) {
    const std::string config = TestFile(program + ".yaml");
    std::ofstream(config) << "cluster: {servers: 2, workers: 1}\n"
                          << "coordinator: {address: '" << coordinator << "'}\n"
                          << "model: {type: linear}\n"
                          << "data: {generated: {train_samples: 100, test_samples: 100}}\n";
    std::vector<std::string> argv = {ProjectFile(absl::StrCat(program == "ps" ? "server/" : "worker/", program)),
                                     "--config", config};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    child_ = psctl::Child::Start(program, argv).value();
  }
  // Waits until the output holds `text`. False if the process ended without it.
  bool WaitForOutput(const std::string& text) {
    while (!absl::StrContains(output_, text) && child_->output_fd() >= 0) {
      pollfd wait = {child_->output_fd(), POLLIN, 0};
      poll(&wait, 1, -1);
      child_->ReadOutput([this](absl::string_view line) { absl::StrAppend(&output_, line, "\n"); });
    }
    return absl::StrContains(output_, text);
  }
  const std::string& output() const { return output_; }

 private:
  std::string output_;
  std::unique_ptr<psctl::Child> child_;
};

// A worker once took up to 5 s to notice: while it paused between two attempts, nothing drove its connection but a
// timer of gRPC's, which this test turns off.
TEST(Join, AWorkerAndAPsStartedFirstJoinAsSoonAsTheCoordinatorListens) {
  setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "0", /*overwrite=*/1);
  const ReservedPort port;
  Process worker("worker", port.address(), {});
  Process second("ps", port.address(), {"--set", "server.index=1", "--set", "server.listen=127.0.0.1:0"});
  EXPECT_TRUE(worker.WaitForOutput("waiting for")) << worker.output();
  EXPECT_TRUE(second.WaitForOutput("failed to connect")) << second.output();
  Process first("ps", port.address(), {"--set", "server.index=0", "--set", "server.listen=" + port.address()});
  EXPECT_TRUE(first.WaitForOutput("worker joined")) << first.output() << worker.output();
  EXPECT_TRUE(second.WaitForOutput("serves shards")) << second.output();
  EXPECT_TRUE(first.WaitForOutput("serves shards")) << first.output();
}

}  // namespace
}  // namespace lodestone

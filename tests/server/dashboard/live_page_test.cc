// The page of a real cluster, in a browser: what it says is what Admin.Status says, and it tells who dies.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/chaos/ps_cluster.h"
#include "tests/server/dashboard/browser.h"
#include "tools/psctl/local/child_process.h"
#include "tools/psctl/local/training_progress.h"
#include "tools/psctl/text/table.h"

namespace lodestone::server {
namespace {

using chaos::PsCluster;
using testing::Contains;
using testing::HasSubstr;

constexpr uint32_t kServers = 2;
constexpr int kStatusMs = 60'000;

std::string ProjectFile(const std::string& path) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/", path);
}

// Two ps with HTTP ports, a worker that trains for longer than the test takes, and a browser at the coordinator's page.
class LivePage : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string obstacle = Browser::Obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
    PsCluster::Options options;
    options.ps_binary = ProjectFile("server/ps");
    options.folder = std::getenv("TEST_TMPDIR");
    options.servers = kServers;
    options.sets = {"cluster.workers=1", "server.http_listen=127.0.0.1:0", "coordinator.lease_ms=2000"};
    auto cluster = PsCluster::Create(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint32_t server = 0; server < kServers; ++server) {
      ASSERT_TRUE(cluster_->Start(server).ok());
      ASSERT_TRUE(Await([&] { return cluster_->Listens(server); }));
    }
    StartWorker();
    ASSERT_TRUE(Await([this] { return Trains(); }));
    auto browser = Browser::Start(options.folder);
    ASSERT_TRUE(browser.ok()) << browser.status();
    browser_ = *std::move(browser);
    Expect(browser_->SetViewport(1280, 900, false));
    Expect(browser_->Open(PageOf(0)));
    ASSERT_TRUE(AwaitPage("known.status && known.history.length > 1"));
  }

  void StartWorker() {
    std::vector<std::string> argv = {ProjectFile("worker/worker"), "--config", ProjectFile("configs/local.yaml")};
    for (const std::string& set :
         {absl::StrCat("coordinator.address=", cluster_->ProxyOf(0)->address()), std::string("cluster.name=chaos"),
          std::string("cluster.shards=16"), std::string("cluster.workers=1"), std::string("train.epochs=1000"),
          std::string("worker.retry_timeout_ms=3600000")}) {
      argv.insert(argv.end(), {"--set", set});
    }
    auto worker = psctl::Child::Start("worker", argv);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
  }

  static void Expect(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }
  // Passes on what the processes say until `condition` holds; false if it never does.
  bool Await(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      cluster_->Pump(20);
      if (worker_ != nullptr) worker_->ReadOutput([](absl::string_view) {});
    }
    return true;
  }
  // The same of an expression in the page.
  bool AwaitPage(const std::string& expression) {
    return Await([&] { return Run(absl::StrCat("return Boolean(", expression, ")")) == true; });
  }
  nlohmann::json Run(const std::string& script, nlohmann::json arguments = nlohmann::json::array()) {
    auto result = browser_->Run(script, std::move(arguments));
    Expect(result.status());
    return result.ok() ? *std::move(result) : nlohmann::json();
  }
  std::string Text(const std::string& selector) {
    const nlohmann::json text = Run("return document.querySelector(arguments[0]).innerText", {selector});
    return text.is_string() ? text.get<std::string>() : "";
  }
  void Screenshot(const std::string& name) {
    const char* const folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    if (folder != nullptr) Expect(browser_->TakeScreenshot(absl::StrCat(folder, "/", name, ".png")));
  }

  v1::StatusResponse StatusOf(uint32_t server) {
    const auto status = cluster_->StatusOf(server, kStatusMs);
    Expect(status.status());
    return status.ok() ? *status : v1::StatusResponse();
  }
  std::string PageOf(uint32_t server) {
    const std::string http = StatusOf(server).server().http();
    EXPECT_NE(http, "") << "ps " << server << " has no HTTP port";
    return absl::StrCat("http://", http, "/");
  }
  bool Trains() {
    const v1::StatusResponse status = StatusOf(0);
    return status.cluster().workers_size() == 1 && status.cluster().workers(0).progress().clock() > 0;
  }

  // What is on the page is what Status says, shortly before and after.
  void ExpectShowsStatus() {
    const v1::StatusResponse before = StatusOf(0);
    ASSERT_TRUE(AwaitPage(absl::StrCat("num(known.status.server.pushes) > ", before.server().pushes())));
    // At once: what is shown, and what it was made from.
    const nlohmann::json shown = Run(
        "const texts = (s) => [...document.querySelectorAll(s)].map((e) => e.innerText);"
        "return {pushes: known.status.server.pushes, clock: known.status.cluster.workers[0].progress.clock,"
        " facts: document.getElementById('facts').innerText, clocks: texts('#workers-table [data-label=clock]'),"
        " peers: texts('#workers-table [data-label=peer]'), tables: texts('#tables-table [data-label=table]'),"
        " shapes: texts('#tables-table [data-label=shape]'), addresses: texts('#servers-table [data-label=address]'),"
        " owns: texts('#servers-table [data-label=owns]'), who: texts('#events-table [data-label=who]')}");
    const v1::StatusResponse after = StatusOf(0);
    const uint64_t pushes = std::stoull(shown["pushes"].get<std::string>());
    EXPECT_GT(pushes, before.server().pushes());
    EXPECT_LE(pushes, after.server().pushes());
    const uint64_t clock = std::stoull(shown["clock"].get<std::string>());
    EXPECT_GE(clock, before.cluster().workers(0).progress().clock());
    EXPECT_LE(clock, after.cluster().workers(0).progress().clock());
    EXPECT_EQ(shown["clocks"], nlohmann::json({psctl::WithThousands(clock)}));
    EXPECT_THAT(shown["facts"].get<std::string>(), HasSubstr(psctl::WithThousands(pushes)));
    ExpectShowsNames(shown, after);
  }
  void ExpectShowsNames(const nlohmann::json& shown, const v1::StatusResponse& after) {
    const std::string facts = shown["facts"];
    EXPECT_THAT(facts, HasSubstr(after.server().address()));
    EXPECT_THAT(facts, HasSubstr(after.server().version()));
    EXPECT_EQ(Text("#name"), after.cluster().name());
    const auto joined = shown["who"].get<std::vector<std::string>>();
    for (const char* const who : {"ps 0", "ps 1", "worker 0"}) EXPECT_THAT(joined, Contains(who));
    EXPECT_EQ(shown["peers"], nlohmann::json({after.cluster().workers(0).peer()}));
    nlohmann::json tables, shapes, addresses, owns;
    for (const v1::TableStatus& table : after.tables()) {
      tables.push_back(table.name());
      shapes.push_back(table.shape());
    }
    for (const v1::MemberStatus& server : after.cluster().servers()) {
      addresses.push_back(server.peer());
      owns.push_back(psctl::WithThousands(server.shards_owned()));
    }
    EXPECT_EQ(shown["tables"], tables);
    EXPECT_EQ(shown["shapes"], shapes);
    EXPECT_EQ(shown["addresses"], addresses);
    EXPECT_EQ(shown["owns"], owns);
  }
  // Its parts are where the links lead to, and it can be made dark and narrow.
  void ExpectUsable() {
    for (const char* const section : {"servers", "curves", "workers", "waits", "tables", "events", "this"}) {
      Expect(browser_->Click(absl::StrCat("nav a[href='#", section, "']")));
      EXPECT_TRUE(AwaitPage(absl::StrCat("((box) => box.top >= 0 && box.top < innerHeight)(document.getElementById('",
                                         section, "-title').getBoundingClientRect())")))
          << section;
    }
    const std::string theme = Text("#theme-name");
    Expect(browser_->Click("#theme"));
    EXPECT_NE(Text("#theme-name"), theme);
    Expect(browser_->SetViewport(320, 700, true));
    EXPECT_TRUE(AwaitPage("innerWidth === 320"));
    EXPECT_EQ(Run("return document.documentElement.scrollWidth"), 320);
    Screenshot("live-phone");
    Expect(browser_->SetViewport(1280, 900, false));
  }
  // What its page says is what it knows.
  void ExpectLeadsToTheOtherPs() {
    Expect(browser_->Click("#servers-table a"));
    ASSERT_TRUE(AwaitPage(absl::StrCat("location.href === '", PageOf(1), "' && known.status")));
    EXPECT_THAT(Text("#state"), HasSubstr("ps 1, at "));
    EXPECT_THAT(Text("#elsewhere"), HasSubstr(absl::StrCat("The coordinator is at ", StatusOf(1).coordinator())));
    Screenshot("live-other");
    Expect(browser_->Open(PageOf(0)));
  }

  std::unique_ptr<PsCluster> cluster_;
  std::unique_ptr<psctl::Child> worker_;
  std::unique_ptr<Browser> browser_;
};

TEST_F(LivePage, SaysWhatStatusSaysAndTellsWhoDies) {
  ExpectShowsStatus();
  EXPECT_TRUE(AwaitPage("document.getElementById('charts').innerText.includes('auc')")) << "the worker tells it";
  Screenshot("live");
  ExpectUsable();
  ExpectLeadsToTheOtherPs();

  cluster_->Kill(1);
  ASSERT_TRUE(AwaitPage("document.getElementById('problems').innerText.includes('ps 1 is dead')"));
  EXPECT_THAT(Text("#problems"), HasSubstr("it owns 8 shards"));
  EXPECT_THAT(Text("#servers-table"), HasSubstr("✕ dead"));
  ASSERT_TRUE(AwaitPage("known.events.some((event) => event.kind === 'died' && event.who === 'ps 1')"));
  EXPECT_THAT(Text("#events-table"), HasSubstr("died"));
  Screenshot("live-dead");

  cluster_->Kill(0);
  ASSERT_TRUE(AwaitPage("!document.getElementById('unreachable').hidden"));
  EXPECT_EQ(Text("#unreachable-text"), "Not reachable");
  EXPECT_THAT(Text("#problems"), HasSubstr("ps 1 is dead")) << "what was known last stays";
  Screenshot("live-not-reachable");
}

}  // namespace
}  // namespace lodestone::server

// What the page shows of made-up clusters, in a browser. Screenshots go to the test's output folder.
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/dashboard/page_browser.h"
#include "tools/psctl/local/training_progress.h"
#include "tools/psctl/text/table.h"

namespace lodestone::server {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using PageLooks = PageBrowserTest;

TEST_F(PageLooks, ShowsAClusterThatTrains) {
  Show("training");
  const PageCase page = MakePageCase("training", NowMs());
  EXPECT_EQ(Text("#state"), "Training 57 %");
  EXPECT_EQ(Text("#name"), "clicks");
  EXPECT_EQ(Text("#link-state"), "live");
  const psctl::ClusterView view = psctl::ViewOf(page.status, 2);
  EXPECT_EQ(Text("#progress-text"), absl::StrCat(psctl::WithThousands(view.samples), " of ",
                                                 psctl::WithThousands(view.samples_total), " samples"));
  EXPECT_EQ(Figure("loss"), "0.3876");
  EXPECT_EQ(Figure("servers alive"), "2 of 2");
  EXPECT_EQ(Run("return document.getElementById('progress').getAttribute('aria-valuenow')"), "57");
  EXPECT_THAT(Column("servers", "state"), ElementsAre("● alive", "● alive"));
  EXPECT_THAT(Column("servers", "address"), ElementsAre("10.0.0.1:7000", "10.0.0.2:7000"));
  EXPECT_THAT(Texts("#strips .segment"), ElementsAre("ps 0 · 32", "ps 1 · 32"));
  EXPECT_THAT(Column("workers", "phase"), ElementsAre("training", "training"));
  EXPECT_THAT(Column("workers", "clock"),
              ElementsAre(psctl::WithThousands(page.status.cluster().workers(0).progress().clock()),
                          psctl::WithThousands(page.status.cluster().workers(1).progress().clock())));
  EXPECT_THAT(Column("tables", "table"),
              ElementsAre("embedding", "linear", "bias", "mlp/0/bias", "mlp/0/weight", "mlp/1/weight"));
  EXPECT_THAT(Column("tables", "bytes"),
              Contains(absl::StrCat(psctl::WithUnit(page.status.tables(0).bytes()), " of 256.0 MiB")));
  EXPECT_THAT(Column("events", "who"), ElementsAre("ps 0", "worker 1", "worker 0", "ps 1", "ps 0")) << "newest first";
  EXPECT_EQ(Text("#waits-table p"), "Nothing waits.");
  EXPECT_THAT(Texts("#charts .name"), ElementsAre("loss", "auc", "samples/s", "staleness", "pushes/s"));
  EXPECT_THAT(Texts("#charts .value"), testing::SizeIs(5));
  EXPECT_THAT(Texts("#charts .value"), Not(Contains("–")));
  EXPECT_EQ(Run("return document.title"), "training 57 % · clicks");
  EXPECT_THAT(Complaints(), IsEmpty());
}

TEST_F(PageLooks, ShowsWhatWorkersComputeOnIfItIsNotTheCpuOfAll) {
  PageCase page = MakePageCase("training", NowMs());
  auto* const workers = page.status.mutable_cluster()->mutable_workers();
  for (v1::MemberStatus& worker : *workers) worker.mutable_progress()->set_device("cpu");
  Show(page);
  EXPECT_FALSE(Sees("#workers-table [data-label=device]"));
  workers->at(1).mutable_progress()->set_device("cuda:1 (NVIDIA H200)");
  Show(page);
  EXPECT_THAT(Column("workers", "device"), ElementsAre("cpu", "cuda:1 (NVIDIA H200)"));
  EXPECT_THAT(Complaints(), IsEmpty());
}

TEST_F(PageLooks, ShowsWhatHasChangedByItself) {
  Show("training");
  server_.Update([](PageCase* page) {
    page->status.mutable_server()->set_version("9.9.9");
    v1::Event* const event = page->events.add_events();
    event->set_id(page->events.events_size());
    event->set_time_ms(NowMs());
    event->set_kind("died");
    event->set_who("worker 1");
  });
  Expect(browser_->Await("document.getElementById('facts').innerText.includes('9.9.9')"));
  EXPECT_THAT(Column("events", "what"), ElementsAre("died", "checkpointed", "joined", "joined", "joined", "joined"));
}

TEST_F(PageLooks, KnowsItsOwnPsBetterThanHeartbeatsTell) {
  PageCase page = MakePageCase("training", NowMs());
  page.status.mutable_cluster()->mutable_servers(0)->clear_server();
  Show(page);
  EXPECT_EQ(Column("servers", "pushes/s")[0], "626");
  EXPECT_EQ(Column("servers", "tables")[0], "181.0 MiB");
  uint64_t rows = 0;
  for (const v1::TableStatus& table : page.status.tables()) rows += table.rows();
  EXPECT_EQ(Column("servers", "rows")[0], psctl::WithThousands(rows));
}

TEST_F(PageLooks, SaysOfEveryStateWhatItIs) {
  const std::pair<const char*, const char*> states[] = {
      {"training", "Training 57 %"}, {"empty", "Waiting for servers: 1 of 2 have joined"},
      {"finished", "Finished"},      {"big", "Training 31 %"},
      {"trouble", "Training 57 %"},  {"other", "ps 1, at 10.0.0.2:7000"},
  };
  for (const auto& [name, state] : states) {
    Show(name);
    EXPECT_EQ(Text("#state"), state) << name;
  }
}

TEST_F(PageLooks, WritesNumbersAsPsctlDoes) {
  Show("training");
  for (const uint64_t number : {uint64_t{0}, uint64_t{9}, uint64_t{999}, uint64_t{1000}, uint64_t{1023}, uint64_t{1024},
                                uint64_t{123'456}, uint64_t{1'048'575}, uint64_t{1} << 40, UINT64_MAX}) {
    const std::string text = std::to_string(number);
    EXPECT_EQ(Run("return withThousands(arguments[0])", {text}), psctl::WithThousands(number)) << number;
    EXPECT_EQ(Run("return withUnit(arguments[0])", {text}), psctl::WithUnit(number)) << number;
  }
  EXPECT_EQ(
      Run("return [rate(625.6), fixed(0.38781, 4), fixed('NaN', 4), fixed('-Infinity', 1), duration(9.24),"
          " duration(83), duration(4000), duration(200000), hex('1234605616436508552'), percent(0.566)].join('|')"),
      "626/s|0.3878|NaN|−∞|9.2 s|1:23|1:06:40|2 d 7:33:20|1122334455667788|57 %");
}

TEST_F(PageLooks, PutsWhatNeedsAttentionFirst) {
  Show("training");
  EXPECT_THAT(Texts("#problems li"), ElementsAre("✓ Nothing"));
  EXPECT_EQ(Text("#attention-count"), "");
  PageCase trouble = MakePageCase("trouble", NowMs());
  // Sooner or later its wait is long; that is another test's.
  trouble.status.mutable_cluster()->mutable_workers(0)->mutable_progress()->clear_waiting_for();
  Show(trouble);
  const Strings problems = Texts("#problems li");
  const Strings expected = {"✕ ps 0 has lost its lease",
                            "✕ ps 0 refuses all pushes: /var/lib/lodestone/ps-0/log-1/3.log",
                            "✕ a checkpoint of ps 0 is damaged: /var/lib/lodestone/ps-0/checkpoints/before-tuning",
                            "✕ ps 1 is dead: last heard of 42.4 s ago; it owns 32 shards",
                            "▲ 12 shards of ps 0 are alone",
                            "▲ ps 0 is nearly full: tables take 181.0 MiB of 190.0 MiB",
                            "▲ ps 0: open to any caller that can connect",
                            "▲ the last checkpoint of ps 0 failed",
                            "▲ servers are missing: 2 of 3",
                            "▲ 44 shards of 64 without a follower in sync",
                            "▲ 1 worker dead: worker 1",
                            "▲ the loss is not finite: of worker 0",
                            "▲ ps 0 has refused 12 pushes: the last: worker 1",
                            "▲ 3 pushes refused by others: ps 1",
                            "▲ calls were denied: batch-7 (9)",
                            "▲ ps 0 waits: since 42.1 s, for ps 1 to confirm"};
  ASSERT_EQ(problems.size(), expected.size()) << absl::StrJoin(problems, "\n");
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_THAT(problems[i], testing::StartsWith(expected[i]));
  EXPECT_EQ(Text("#attention-count"), "16");
  EXPECT_EQ(Run("return document.title"), "✕ training 57 % · clicks");
  EXPECT_THAT(Column("servers", "state"), ElementsAre("✕ dead", "● alive", "○ gone")) << "trouble first";
  EXPECT_THAT(Column("workers", "state"), ElementsAre("✕ dead", "● alive"));
  EXPECT_THAT(Texts("#strips .segment"),
              ElementsAre("ps 0 · 32", "✕ ps 1 · 32", "ps 0 · 20", "✕ ps 1 · 20", "✕ nobody · 24"));
}

TEST_F(PageLooks, TellsWhatWaitsForWhatAndSinceWhen) {
  Show("trouble");
  EXPECT_THAT(Column("waits", "who"), ElementsAre("ps 0", "worker 0"));
  EXPECT_THAT(Column("waits", "waits for"), ElementsAre("ps 1 to confirm updates that it follows",
                                                        HasSubstr("to acknowledge pushes: connection refused")));
  EXPECT_THAT(Column("waits", "since"), ElementsAre("▲ 42.1 s", HasSubstr("over ")))
      << "since when a worker waits is known from when the page has seen it";
  EXPECT_THAT(Column("workers", "waits for"),
              ElementsAre("", "ps 1 at 10.0.0.2:7000 to acknowledge pushes: connection refused"))
      << "cut for the eye only";
  EXPECT_THAT(Texts("#why li"),
              ElementsAre("worker 0 waits for ps 0 to acknowledge push 1093, which waits for ps 1; likewise worker 3",
                          "▲ slow: worker 0 trains 0.2 of the median",
                          "▲ slow: shard 9 on ps 0 takes 25 % of the time that pushes take",
                          "▲ hot: shard 17 on ps 1 takes 41 % of the bytes pushed"));
}

TEST_F(PageLooks, AWorkersWaitNeedsAttentionOnceItIsLong) {
  Show("training");
  const char* const script =
      "const seen = new Map(), status = {cluster: {workers: [{index: 3, incarnation: '7', alive: true,"
      " progress: {waiting_for: 'ps 1'}}]}};"
      "const told = (ms) => { const waits = waitsOf(status, seen, ms);"
      "  return [waits.length, waits[0] && waits[0].seconds, problemsOf(status, waits).length]; };"
      "const first = told(1000), later = told(6000);"
      "status.cluster.workers[0].progress.waiting_for = ''; const ended = told(7000);"
      "status.cluster.workers[0].progress.waiting_for = 'ps 1'; return [first, later, ended, told(8000)]";
  EXPECT_EQ(Run(script).dump(), "[[1,1,0],[1,6,1],[0,null,0],[1,1,0]]");
}

TEST_F(PageLooks, SaysHowFarARunHasComeWhoseSamplesAreLeased) {
  Show("training");
  const char* const script =
      "const workers = [{incarnation: '7', alive: true}, {incarnation: '8', alive: false}];"
      "const ranges = {plan: {epoch_batches: '100', batches: '250'}, batches_closed: '110', leased_again: '2',"
      " open: [{holder: '7', done: 5}, {holder: '8'}, {holder: '0'}]};"
      "return [rangesText(undefined, workers), rangesText(ranges, workers)]";
  EXPECT_THAT(Run(script)[0], "");
  EXPECT_THAT(Run(script)[1],
              "Epoch 2 of 3: 46 % of 250 batches · ranges with workers: 1 · waiting for a worker: 2 · given again: 2");
}

TEST_F(PageLooks, NothingIsWiderThanTheScreen) {
  for (const char* const name : kPageCases) {
    for (const int width : {320, 390, 800, 1280}) {
      SCOPED_TRACE(absl::StrCat(name, " at ", width));
      Resize(width, width < 600);
      Show(name);
      EXPECT_EQ(Run("return document.documentElement.scrollWidth"), width);
      // Nor does anything but tables and the sections' list hide a part of itself.
      EXPECT_EQ(Run("return [...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() &&"
                    " !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 0.5)"
                    ".map((e) => e.outerHTML.slice(0, 100))"),
                nlohmann::json::array());
      // What folds: all tables on a phone, on a tablet those with many columns.
      const char* const folded = width < 600   ? ".scroll, .scroll th, .scroll td, #figures div"
                                 : width < 900 ? "#servers .scroll, #workers .scroll, #tables .scroll"
                                               : "#figures div";
      EXPECT_EQ(Run("return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility() &&"
                    " e.scrollWidth > e.clientWidth + 1).map((e) => e.outerHTML.slice(0, 100))",
                    {folded}),
                nlohmann::json::array());
      Screenshot(absl::StrCat(name, "-", width));
    }
  }
}

TEST_F(PageLooks, EveryTextStandsOutFromItsGround) {
  // WCAG 2.1, 1.4.3: a contrast of 4.5, of large text 3.
  const char* const script = R"js(
    const parse = (color) => { const c = color.match(/[\d.]+/g).map(Number); return c.length < 4 ? [...c, 1] : c; };
    const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (e) => { for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
    const poor = [];
    for (const e of document.querySelectorAll('body *')) {
      if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
      const style = getComputedStyle(e), ink = parse(e.namespaceURI.endsWith('svg') ? style.fill : style.color);
      const [a, b] = [light(ink), light(ground(e))], contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const large = parseFloat(style.fontSize) >= 24;
      if (contrast < (large ? 3 : 4.5)) poor.push(`${e.tagName} ${e.className} "${e.textContent.slice(0, 30)}": ${contrast}`);
    }
    return poor;
  )js";
  for (const char* const scheme : {"light", "dark"}) {
    Expect(browser_->SetColorScheme(scheme));
    Show("trouble");
    EXPECT_EQ(Run(script), nlohmann::json::array()) << scheme;
    Screenshot(absl::StrCat("trouble-", scheme));
  }
}

TEST_F(PageLooks, NamesFromTheNetworkAreTextOnly) {
  Show("names");
  EXPECT_EQ(Text("#name"), kHostileName);
  EXPECT_THAT(Column("events", "who"), Contains(kHostileName));
  EXPECT_THAT(Column("workers", "waits for"), Contains(HasSubstr(kHostileName)));
  EXPECT_THAT(Column("tables", "table"), Contains(HasSubstr(kHostileName)));
  EXPECT_THAT(Text("#problems"), HasSubstr(kHostileName));
  EXPECT_THAT(Texts("#why li"), Contains(HasSubstr(kHostileName)));
  EXPECT_THAT(Texts("#charts .name"), Contains(kHostileName));
  EXPECT_EQ(Run("return window.hacked === undefined"), true);
  EXPECT_EQ(Run("return document.querySelectorAll('img, body script:not(:last-of-type), iframe').length"), 0);
  EXPECT_EQ(Run("return [...document.links].filter((a) => a.protocol !== location.protocol).length"), 0);
  EXPECT_THAT(Column("servers", "ps"), ElementsAre("1", "0 this", "2")) << "without links";
  EXPECT_EQ(Run("return document.querySelectorAll('#servers-table a').length"), 0);
  EXPECT_THAT(Complaints(), IsEmpty());
}

TEST_F(PageLooks, LinksToThePagesOfOthers) {
  Show("training");
  EXPECT_EQ(Run("return [...document.querySelectorAll('#servers-table a')].map((a) => a.href)"),
            nlohmann::json({"http://10.0.0.2:7080/"}))
      << "not to itself";
  const char* const script = "return arguments.length && [...arguments].map((http) => pageUrl(http, 'https:'))";
  EXPECT_EQ(Run(script, {"ps1:7080", "10.0.0.1:80", "[::1]:80", "http://ps1:7080", "https://ps1:7080/"}),
            nlohmann::json({"https://ps1:7080/", "https://10.0.0.1:80/", "https://[::1]:80/", "http://ps1:7080/",
                            "https://ps1:7080/"}));
  EXPECT_EQ(Run(script, {"", "ps1", "ps1:7080/x", "javascript:80", "javascript:alert(1)//:80", "a b:80", "u:p@h:80",
                         "ps1:7080?x", "//ps1:80", "\\\\ps1:80"})
                .dump(),
            "[null,null,null,\"https://javascript:80/\",null,null,null,null,null,null]");
}

TEST_F(PageLooks, LinksToNoPageThatOnlyItsOwnMachineReaches) {
  Show("training");
  const char* const script =
      "return arguments[0].map(([http, peer, host]) => pageOf({server: {http}, peer}, {protocol: 'http:', host}))";
  // By ssh -L, whose 127.0.0.1 would be this page; and all on one machine, which is not this one.
  const nlohmann::json far = {{"127.0.0.1:7080", "10.0.0.2:7000", "127.0.0.1:7080"},
                              {"localhost:7080", "ps1:7000", "ps0:7080"},
                              {"http://127.0.0.1:80", "10.0.0.2:7000", "localhost"},
                              {"[::1]:7080", "127.0.0.1:7000", "10.0.0.1:7080"}};
  EXPECT_EQ(Run(script, nlohmann::json::array({far})).dump(), "[null,null,null,null]");
  const nlohmann::json near = {{"127.0.0.1:7080", "127.0.0.1:7000", "localhost:7081"},
                               {"10.0.0.2:7080", "10.0.0.2:7000", "127.0.0.1:7081"},
                               {"localhost.example:7080", "10.0.0.2:7000", "ps0"}};
  EXPECT_EQ(Run(script, nlohmann::json::array({near})),
            nlohmann::json({"http://127.0.0.1:7080/", "http://10.0.0.2:7080/", "http://localhost.example:7080/"}));
}

TEST_F(PageLooks, APsThatDoesNotServeTheCoordinatorSaysWhoDoes) {
  Show("other");
  EXPECT_THAT(Text("#elsewhere"), HasSubstr("The coordinator is at 10.0.0.1:7000, and there is probably its page."));
  EXPECT_FALSE(Sees("#servers"));
  EXPECT_FALSE(Sees("nav a[href='#workers']"));
  EXPECT_THAT(Column("tables", "table"), Contains("embedding")) << "what it knows itself";
  // Who has known the cluster knows where that page is.
  Show("training");
  EXPECT_FALSE(Sees("#elsewhere"));
  EXPECT_TRUE(Sees("#servers"));
  server_.Set(MakePageCase("other", NowMs()));
  Expect(browser_->Await("!document.getElementById('elsewhere').hidden"));
  EXPECT_THAT(Text("#elsewhere"), HasSubstr("and there is its page."));
  EXPECT_EQ(Run("return document.querySelector('#elsewhere a').href"), "http://10.0.0.1:7080/");
  // One that has not found it yet.
  server_.Update([](PageCase* page) { page->status.clear_coordinator(); });
  Expect(browser_->Await("document.getElementById('elsewhere').innerText.includes('not reached the coordinator')"));
}

TEST_F(PageLooks, ShardsOfAServerThatHasLeftNeedAttention) {
  PageCase page = MakePageCase("training", NowMs());
  v1::MemberStatus* const left = page.status.mutable_cluster()->mutable_servers(1);
  left->set_alive(false);
  left->set_left(true);
  Show(page);
  EXPECT_THAT(Texts("#problems li"), ElementsAre("✕ 32 shards not served: ps 1 left, and nobody else has them"));
  left->set_shards_owned(0);  // Its follower has them.
  page.status.mutable_cluster()->mutable_servers(0)->set_shards_owned(64);
  Show(page);
  EXPECT_THAT(Texts("#problems li"), ElementsAre("✓ Nothing"));
}

TEST_F(PageLooks, ServersSayTheirZonesWhereThereAreAnyAndBothCopiesInOneAreAWarning) {
  PageCase page = MakePageCase("training", NowMs());
  Show(page);
  EXPECT_THAT(Texts("#servers-table th"), Not(Contains("zone")));
  page.status.mutable_cluster()->mutable_servers(0)->set_zone("rack-b");
  page.status.mutable_cluster()->add_one_zone("zone rack-b has both copies of 3 shards");
  Show(page);
  EXPECT_THAT(Texts("#servers-table th"), Contains("zone"));
  EXPECT_THAT(Texts("#servers-table td"), Contains("rack-b"));
  EXPECT_THAT(Texts("#problems li"), Contains("▲ copies in one zone: zone rack-b has both copies of 3 shards"));
}

TEST_F(PageLooks, ShardsThatWaitForAnOperatorComeFirstInRedWithWhatIsToBeDone) {
  PageCase page = MakePageCase("training", NowMs());
  const std::string line =
      "4 of 8 shards are lost and not served: ps 1 was restarted without their data. Start it with its former folder; "
      "or "
      "`psctl accept-loss 1` goes on";
  page.status.mutable_cluster()->add_unserved(line);
  Show(page);
  EXPECT_THAT(Texts("#problems li"), ElementsAre("✕ not served: " + line));
  EXPECT_THAT(Texts("#problems li.bad"), testing::SizeIs(1));
  EXPECT_THAT(Run("return document.title").get<std::string>(), testing::StartsWith("✕ "));
}

TEST_F(PageLooks, RowsOfWhichThereAreCopiesAreSaidToBe) {
  const PageCase page = MakePageCase("big", NowMs());
  Show(page);
  uint64_t rows = 0;
  for (const v1::MemberStatus& server : page.status.cluster().servers()) {
    if (server.index() > 0) rows += server.server().rows();
  }
  for (const v1::TableStatus& table : page.status.tables()) rows += table.rows();
  EXPECT_EQ(Figure("rows (2 copies)"), psctl::WithThousands(rows));
}

TEST_F(PageLooks, SamplesGoOnWhereAnotherRunBegins) {
  Show("training");
  EXPECT_EQ(Run("return curvePoints([0, 100, 300, 0, 50, 250].map((samples, i) => ({time_ms: 1000 * i, samples})),"
                " 'samples').map((point) => point.x)"),
            nlohmann::json({0, 100, 300, 300, 350, 550}));
}

TEST_F(PageLooks, TheMetricHasACurveUnderItsNameOnceAWorkerReportsIt) {
  PageCase page = MakePageCase("training", NowMs());
  for (v1::HistoryPoint& point : *page.history.mutable_points()) {
    point.clear_metric_name();
    point.clear_metric();
  }
  Show(page);
  EXPECT_THAT(Texts("#charts .name"), ElementsAre("loss", "samples/s", "staleness", "pushes/s"));
  const int last = page.history.points_size() - 1;
  server_.Update([last](PageCase* page) {
    page->history.mutable_points(last - 1)->set_metric_name("auc");
    page->history.mutable_points(last - 1)->set_metric(0.75);
    page->history.mutable_points(last)->set_metric_name("rmse");
    page->history.mutable_points(last)->set_metric(1.25);
  });
  Expect(browser_->Await("document.getElementById('charts').innerText.includes('rmse')"));
  EXPECT_THAT(Texts("#charts .name"), ElementsAre("loss", "rmse", "samples/s", "staleness", "pushes/s"));
  EXPECT_EQ(Texts("#charts .value")[1], "1.2500");
  EXPECT_THAT(Run("return document.querySelectorAll('#charts svg')[1].getAttribute('aria-label')").get<std::string>(),
              testing::StartsWith("rmse, "));
  Expect(browser_->Await("document.querySelectorAll('#charts .dot').length === 5"));
  EXPECT_EQ(Run("return (document.querySelectorAll('#charts .curve')[1].getAttribute('d').match(/[ML]/g)).join('')"),
            "M")
      << "the auc of another run is no part of it";
  EXPECT_EQ(
      Run("return [undefined, 'NaN', 'Infinity', 0.5].map((metric) => metricOf({metric_name: 'auc', metric}, 'auc'))"),
      nlohmann::json({0, nullptr, nullptr, 0.5}))
      << "JSON leaves out what is zero";
  EXPECT_THAT(Complaints(), IsEmpty());
}

TEST_F(PageLooks, CurvesBreakWhereNobodyWasAtWork) {
  Show("training");
  EXPECT_EQ(Run("return (document.querySelectorAll('#charts .curve')[1].getAttribute('d').match(/M/g)).length"), 1);
  server_.Update([](PageCase* page) {
    for (int i = 10; i < page->history.points_size(); ++i) {
      page->history.mutable_points(i)->set_time_ms(page->history.points(i).time_ms() + 3'600'000);
    }
  });
  Expect(browser_->Await("document.querySelectorAll('#charts .curve')[1].getAttribute('d').match(/M/g).length === 2"));
}

}  // namespace
}  // namespace lodestone::server

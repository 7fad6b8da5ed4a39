// What a person does with the page in a browser, in front of made-up clusters.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

using PageUse = PageBrowserTest;

TEST_F(PageUse, FollowsTheSystemsThemeUnlessAnotherIsChosen) {
  Expect(browser_->SetColorScheme("dark"));
  Show("training");
  Run("localStorage.clear()");
  Open();
  const char* const dark =
      "return matchMedia('(prefers-color-scheme: dark)').matches !== undefined &&"
      " document.documentElement.dataset.theme === 'dark' &&"
      " getComputedStyle(document.body).backgroundColor === 'rgb(20, 23, 26)'";
  EXPECT_EQ(Run(dark), true);
  EXPECT_EQ(Text("#theme"), "Theme: auto");
  Expect(browser_->SetColorScheme("light"));
  Expect(browser_->Await("document.documentElement.dataset.theme === 'light'"));
  EXPECT_EQ(Run(dark), false);
  Expect(browser_->Click("#theme"));
  EXPECT_EQ(Text("#theme"), "Theme: light");
  Expect(browser_->Click("#theme"));
  EXPECT_EQ(Text("#theme"), "Theme: dark");
  EXPECT_EQ(Run(dark), true);
  Open();
  EXPECT_EQ(Run(dark), true) << "it is remembered";
  Expect(browser_->Click("#theme"));
  EXPECT_EQ(Text("#theme"), "Theme: auto");
  EXPECT_EQ(Run(dark), false);
}

TEST_F(PageUse, TablesAreSortedByTheirColumns) {
  Show("big");
  EXPECT_EQ(Column("workers", "worker")[0], "0");
  Run("[...document.querySelectorAll('#workers-table thead button')].find((b) => b.innerText === 'loss').id = "
      "'by-loss'");
  Expect(browser_->Click("#by-loss"));
  Strings losses = Column("workers", "loss");
  EXPECT_TRUE(std::is_sorted(losses.rbegin(), losses.rend())) << "the largest first";
  EXPECT_EQ(Run("return document.getElementById('by-loss').closest('th').ariaSort"), "descending");
  Expect(browser_->Click("#by-loss"));
  losses = Column("workers", "loss");
  EXPECT_TRUE(std::is_sorted(losses.begin(), losses.end()));
  Expect(browser_->Click("#by-loss"));
  EXPECT_EQ(Column("workers", "worker")[0], "0") << "as they were";
  EXPECT_EQ(Run("return document.querySelectorAll('[aria-sort]').length"), 0);
}

TEST_F(PageUse, LongTablesAreShownWholeWhenAsked) {
  Show("big");
  for (const auto& [section, rows] :
       {std::pair<const char*, size_t>{"servers", 100}, {"workers", 500}, {"tables", 200}}) {
    const std::string body = absl::StrCat("#", section, "-table tbody tr"),
                      button = absl::StrCat("#", section, " .more");
    EXPECT_LE(Texts(body).size(), 100u) << section;
    EXPECT_EQ(Text(button), absl::StrCat("Show all ", rows));
    Expect(browser_->Click(button));
    EXPECT_EQ(Texts(body).size(), rows);
    Expect(browser_->Click(button));
    EXPECT_LE(Texts(body).size(), 100u) << section;
  }
  EXPECT_EQ(Column("events", "time").size(), 50u);
  EXPECT_EQ(Text("#events .more"), "Show all 1,024");
}

TEST_F(PageUse, EventsOfAKindCanBeHidden) {
  Show("training");
  EXPECT_THAT(Texts("#kinds label"), ElementsAre("checkpointed 1", "joined 4"));
  Expect(browser_->Click("#kinds label:nth-of-type(2)"));
  EXPECT_THAT(Column("events", "what"), ElementsAre("checkpointed"));
  EXPECT_EQ(Text("#events-text"), "4 of 5 are hidden.");
  Expect(browser_->Click("#kinds label:nth-of-type(2)"));
  EXPECT_EQ(Column("events", "what").size(), 5u);
}

TEST_F(PageUse, CurvesTellTheirValuesWhereTheCursorIs) {
  Show("training");
  const PageCase page = MakePageCase("training", NowMs());
  const auto at = [&](int point) { return page.history.points(point); };
  Run("document.querySelector('#charts svg').focus()");
  Expect(browser_->Press(Browser::kHome));
  EXPECT_THAT(Texts("#charts .value"), ElementsAre("–", "–", "0", "–", "0")) << "nobody trained yet";
  Expect(browser_->Press(absl::StrCat(Browser::kRight, Browser::kRight, Browser::kRight)));
  EXPECT_THAT(Texts("#charts .value"),
              ElementsAre(absl::StrFormat("%.4f", at(3).loss()), absl::StrFormat("%.4f", at(3).metric()),
                          psctl::WithThousands(std::llround(at(3).samples_per_second())),
                          absl::StrFormat("%.1f pushes", at(3).staleness_pushes()),
                          psctl::WithThousands(std::llround(at(3).pushes_per_second()))));
  EXPECT_EQ(Text("#charts figcaption .muted"),
            absl::StrCat("at 0:03, ", psctl::WithThousands(at(3).samples()), " samples"));
  EXPECT_EQ(Run("return document.querySelectorAll('#charts .cursor').length"), 5) << "at the same time in all";
  EXPECT_EQ(Run("return document.activeElement.getAttribute('aria-valuetext')"),
            absl::StrFormat("%.4f at 0:03, %s samples", at(3).loss(), psctl::WithThousands(at(3).samples())));
  Expect(browser_->Press(Browser::kEscape));
  EXPECT_EQ(Run("return document.querySelectorAll('#charts .cursor').length"), 0);
  EXPECT_EQ(Texts("#charts .value")[0], absl::StrFormat("%.4f", at(page.history.points_size() - 1).loss()))
      << "the newest";
  // A pointer does the same.
  Run("const svg = document.querySelector('#charts svg'), box = svg.getBoundingClientRect();"
      "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right, clientY: box.top + 9}))");
  EXPECT_EQ(Run("return document.querySelectorAll('#charts .cursor').length"), 5);
  Expect(browser_->Click("#axis label:last-of-type"));
  EXPECT_THAT(Texts("#charts .tick"), Contains(testing::EndsWith("M"))) << "samples";
}

TEST_F(PageUse, EverythingIsReachedByKeyboard) {
  Show("big");
  Run("window.reached = new Set(); document.addEventListener('focusin', (event) => reached.add(event.target))");
  Expect(browser_->Press(Browser::kTab));
  EXPECT_EQ(Run("return document.activeElement.className"), "skip");
  EXPECT_EQ(Run("return document.activeElement.getBoundingClientRect().width > 50"), true) << "it is seen then";
  const char* const wanted =
      "[...document.querySelectorAll('a[href], button, input, summary, svg[tabindex]')].filter((e) => "
      "e.checkVisibility()"
      " && !(e.type === 'radio' && !e.checked))";
  std::string tabs;
  for (int i = 0; i < 20; ++i) tabs += Browser::kTab;
  for (int i = 0; i < 40; ++i) {
    Expect(browser_->Press(tabs));
    if (Run(absl::StrCat("return ", wanted, ".every((e) => reached.has(e))")) == true) break;
  }
  EXPECT_EQ(
      Run(absl::StrCat("return ", wanted, ".filter((e) => !reached.has(e)).map((e) => e.outerHTML.slice(0, 120))")),
      nlohmann::json::array());
  Run("document.getElementById('theme').focus()");
  Expect(browser_->Press(Browser::kTab));  // What a script gives the focus to need not show it.
  EXPECT_NE(Run("return document.activeElement.id"), "theme");
  EXPECT_EQ(Run("return getComputedStyle(document.activeElement).outlineStyle"), "solid") << "where one is, is seen";
}

TEST_F(PageUse, SaysWhenNothingAnswersAndGoesOnByItself) {
  Show("training");
  EXPECT_FALSE(Sees("#unreachable"));
  server_.Close();
  Expect(browser_->Await("!document.getElementById('unreachable').hidden"));
  EXPECT_EQ(Text("#unreachable-text"), "Not reachable");
  EXPECT_EQ(Text("#link-state"), "not reachable");
  EXPECT_THAT(Run("return document.title").get<std::string>(), testing::StartsWith("✕ not reachable"));
  EXPECT_EQ(Text("#state"), "Training 57 %") << "what was known last stays";
  Expect(
      browser_->Await("/What is shown is (?!0:0[01])\\d+:\\d\\d old; trying again/.test("
                      "document.getElementById('unreachable-age').innerText)"));
  Screenshot("not-reachable");
  server_.Set(MakePageCase("finished", NowMs()));
  server_.Listen();
  Expect(browser_->Await("document.getElementById('unreachable').hidden"));
  EXPECT_EQ(Text("#state"), "Finished");
  EXPECT_EQ(Text("#link-state"), "live");
}

TEST_F(PageUse, TheLinkToTheCoordinatorKeepsTheFocus) {
  Show("other");
  Run("document.querySelector('#elsewhere a').focus()");
  server_.Update([](PageCase* page) { page->status.mutable_server()->set_version("9.9.9"); });
  Expect(browser_->Await("document.getElementById('facts').innerText.includes('9.9.9')"));
  EXPECT_EQ(Run("return document.activeElement.href ?? ''"), Run("return document.querySelector('#elsewhere a').href"));
}

TEST_F(PageUse, AnotherLifeOfThePsBeginsItsEventsAnew) {
  Show("training");
  EXPECT_EQ(Column("events", "who").size(), 5u);
  server_.Update([](PageCase* page) {
    page->events.clear_events();
    page->events.set_incarnation(43);
    v1::Event* const event = page->events.add_events();
    event->set_id(1);
    event->set_time_ms(NowMs());
    event->set_kind("joined");
    event->set_who("ps 9");
  });
  Expect(browser_->Await("document.getElementById('events-table').innerText.includes('ps 9')"));
  EXPECT_THAT(Column("events", "who"), ElementsAre("ps 9"));
}

TEST_F(PageUse, AsksForATokenAndKeepsItInTheTabOnly) {
  server_.Set(MakePageCase("training", NowMs()));
  server_.RequireToken("secret");
  Open();
  Expect(browser_->Await("!document.getElementById('ask').hidden"));
  EXPECT_FALSE(Sees("#content"));
  EXPECT_THAT(Text("#ask-why"), HasSubstr("HTTP 401: HTTP: <b>a token is needed</b>"));
  EXPECT_EQ(Run("return document.activeElement.id"), "token");
  Screenshot("token");
  const int asked = server_.requests();
  Expect(browser_->Press(absl::StrCat("wrong", Browser::kEnter)));
  Expect(browser_->Await("document.getElementById('ask-why').innerText.startsWith('This token is not accepted.')"));
  EXPECT_EQ(server_.requests(), asked + 1) << "it does not go on asking with what was refused";
  Expect(browser_->Press(absl::StrCat("secret", Browser::kEnter)));
  Expect(browser_->Await("!document.getElementById('content').hidden"));
  EXPECT_FALSE(Sees("#ask"));
  EXPECT_EQ(Run("return JSON.stringify(sessionStorage)"), "{\"lodestone-token\":\"secret\"}");
  EXPECT_EQ(Run("return JSON.stringify(localStorage).includes('secret') || document.cookie.includes('secret') ||"
                " location.href.includes('secret') || document.documentElement.outerHTML.includes('secret')"),
            false);
  Open();
  Expect(browser_->Await("!document.getElementById('content').hidden"));
  EXPECT_FALSE(Sees("#ask")) << "a reload keeps it";
  Expect(browser_->Click("#forget"));
  Expect(browser_->Await("!document.getElementById('ask').hidden"));
  EXPECT_EQ(Run("return JSON.stringify(sessionStorage)"), "{}");
  server_.RequireToken("secret", 403);
  Expect(browser_->Press(absl::StrCat("worker", Browser::kEnter)));
  Expect(browser_->Await("document.getElementById('ask-why').innerText.startsWith('This token may not look.')"));
}

TEST_F(PageUse, AsksSeldomWhileNobodyLooks) {
  Show("training");
  // What it waits before it asks again, as it says to the browser.
  const char* const script = R"js(
    const done = arguments[0], plain = window.setTimeout, waits = [];
    window.setTimeout = (call, ms, ...rest) => { if (call === poll) waits.push(ms); return plain(call, ms, ...rest); };
    const set = (hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
                              document.dispatchEvent(new Event('visibilitychange')); };
    set(true);
    const hidden = [...waits];
    waits.length = 0;
    set(false);
    (function look() { if (waits.length > 0) done([hidden, [...waits]]); else plain(look, 20); })();
  )js";
  const auto waits = browser_->RunAsync(script);
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_EQ(waits->dump(), "[[15000],[1000]]");
}

}  // namespace
}  // namespace lodestone::server

// What tests of the page in a browser share.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/dashboard/browser.h"
#include "tests/server/dashboard/page_cases.h"
#include "tests/server/dashboard/page_server.h"

namespace lodestone::server {

using Strings = std::vector<std::string>;

inline uint64_t NowMs() {
  using std::chrono::milliseconds;
  return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// One browser for all tests: it takes its time to start.
class PageBrowserTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!Browser::Obstacle().empty()) return;
    auto browser = Browser::Start(std::getenv("TEST_TMPDIR"));
    ASSERT_TRUE(browser.ok()) << browser.status();
    browser_ = browser->release();
  }
  static void TearDownTestSuite() {
    delete browser_;
    browser_ = nullptr;
  }
  void SetUp() override {
    if (const std::string obstacle = Browser::Obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
    ASSERT_NE(browser_, nullptr);
    ASSERT_TRUE(browser_->SetColorScheme("light").ok());
    Resize(1280, false);
    ASSERT_TRUE(browser_->TakeComplaints().ok());
  }
  // A page that goes on polling would complain about a server that is gone.
  void TearDown() override {
    if (browser_ != nullptr) Expect(browser_->Open("about:blank"));
  }

  static void Expect(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }
  void Resize(int width, bool phone) { Expect(browser_->SetViewport(width, 900, phone)); }
  void Open() { Expect(browser_->Open(server_.url())); }
  // Opens the page of a case, and waits until it shows it.
  void Show(const std::string& name) { Show(MakePageCase(name, NowMs())); }
  void Show(const PageCase& page) {
    server_.Set(page);
    Open();
    Expect(browser_->Await("!document.getElementById('content').hidden"));
  }
  nlohmann::json Run(const std::string& script, nlohmann::json arguments = nlohmann::json::array()) {
    auto result = browser_->Run(script, std::move(arguments));
    Expect(result.status());
    return result.ok() ? *std::move(result) : nlohmann::json();
  }
  // The text of the first such element, as it is seen.
  std::string Text(const std::string& selector) {
    const nlohmann::json text = Run("return document.querySelector(arguments[0]).innerText", {selector});
    return text.is_string() ? text.get<std::string>() : "";
  }
  // The texts of all such elements that are seen.
  Strings Texts(const std::string& selector) {
    const nlohmann::json texts =
        Run("return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => "
            "(e.innerText ?? e.textContent).trim())",
            {selector});
    return texts.is_array() ? texts.get<Strings>() : Strings();
  }
  // What a section's table says in a column, by the column's name.
  Strings Column(const std::string& section, const std::string& name) {
    return Texts(absl::StrCat("#", section, "-table tbody [data-label='", name, "']"));
  }
  std::string Figure(const std::string& term) {
    return Run("return [...document.querySelectorAll('#figures dt')].find((e) => e.innerText === arguments[0])"
               ".nextSibling.innerText",
               {term})
        .get<std::string>();
  }
  bool Sees(const std::string& selector) {
    return Run("return document.querySelector(arguments[0]).checkVisibility()", {selector}) == true;
  }
  Strings Complaints() {
    auto complaints = browser_->TakeComplaints();
    Expect(complaints.status());
    return complaints.ok() ? *complaints : Strings{"none can be had"};
  }
  void Screenshot(const std::string& name) {
    const char* const folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    if (folder != nullptr) Expect(browser_->TakeScreenshot(absl::StrCat(folder, "/", name, ".png")));
  }

  static inline Browser* browser_ = nullptr;
  PageServer server_;
};

}  // namespace lodestone::server

#include "tests/server/dashboard/browser.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

constexpr char kDriver[] = "/usr/bin/chromedriver";
constexpr char kChromium[] = "/usr/bin/chromium";
constexpr int kTimeoutSeconds = 120;
constexpr int kAwaitMs = 60'000;
// What element references are called in JSON.
constexpr char kElement[] = "element-6066-11e4-a52e-4f735466cecf";

// The port that chromedriver says it listens on.
absl::StatusOr<int> ReadPort(psctl::Child* driver) {
  constexpr absl::string_view kSays = "started successfully on port ";
  int port = 0;
  std::string said;
  while (port == 0 && driver->output_fd() >= 0) {
    pollfd wait = {driver->output_fd(), POLLIN, 0};
    poll(&wait, 1, -1);
    driver->ReadOutput([&](absl::string_view line) {
      absl::StrAppend(&said, line, "\n");
      const size_t at = line.find(kSays.data(), 0, kSays.size());
      if (at == absl::string_view::npos) return;
      line.remove_prefix(at + kSays.size());
      if (absl::EndsWith(line, ".")) line.remove_suffix(1);
      if (!absl::SimpleAtoi(line, &port)) port = 0;
    });
  }
  if (port == 0) return absl::UnavailableError(absl::StrCat(kDriver, " does not say where it listens: ", said));
  return port;
}

}  // namespace

std::string Browser::Obstacle() {
  for (const char* const program : {kDriver, kChromium}) {
    if (!std::ifstream(program)) return absl::StrCat(program, " is not here (tools/install --check installs it)");
  }
  return "";
}

Browser::Browser(std::unique_ptr<psctl::Child> driver, int port)
    : driver_(std::move(driver)), client_("127.0.0.1", port) {
  client_.set_read_timeout(kTimeoutSeconds, 0);
  client_.set_tcp_nodelay(true);
}

absl::StatusOr<std::unique_ptr<Browser>> Browser::Start(const std::string& folder) {
  setenv("HOME", folder.c_str(), /*overwrite=*/1);  // Of chromium, which writes there.
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<psctl::Child> driver,
                             psctl::Child::Start("chromedriver", {kDriver, "--port=0", "--log-level=WARNING"}));
  LODESTONE_ASSIGN_OR_RETURN(const int port, ReadPort(driver.get()));
  std::unique_ptr<Browser> browser(new Browser(std::move(driver), port));
  LODESTONE_RETURN_IF_ERROR(browser->StartSession(folder));
  return browser;
}

absl::Status Browser::StartSession(const std::string& folder) {
  // No sandbox: as root Chromium has none, and what it is shown here is ours. With the pipe it ends with chromedriver.
  const nlohmann::json options = {{"args",
                                   {"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                    "--hide-scrollbars", "--remote-debugging-pipe", "--no-proxy-server",
                                    "--force-prefers-reduced-motion",  // Or what is clicked is still being scrolled to.
                                    absl::StrCat("--user-data-dir=", folder, "/profile")}}};
  const nlohmann::json wanted = {
      {"browserName", "chrome"}, {"goog:chromeOptions", options}, {"goog:loggingPrefs", {{"browser", "ALL"}}}};
  LODESTONE_ASSIGN_OR_RETURN(const nlohmann::json session,
                             Post("/session", {{"capabilities", {{"alwaysMatch", wanted}}}}));
  session_ = absl::StrCat("/session/", session.value("sessionId", ""));
  return Post("/timeouts", {{"script", 1000 * kTimeoutSeconds}}).status();
}

Browser::~Browser() {
  if (!session_.empty()) client_.Delete(session_);
}

absl::StatusOr<nlohmann::json> Browser::Post(const std::string& path, const nlohmann::json& body) {
  // Its output has to be read, or it stands.
  driver_->ReadOutput([](absl::string_view) {});
  const httplib::Result answer = client_.Post(session_ + path, body.dump(), "application/json");
  if (!answer) return absl::UnavailableError(absl::StrCat(path, ": ", httplib::to_string(answer.error())));
  nlohmann::json parsed = nlohmann::json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded() || !parsed.contains("value")) {
    return absl::InternalError(absl::StrCat(path, ": no WebDriver answers: ", answer->body.substr(0, 200)));
  }
  if (answer->status == 200) return std::move(parsed["value"]);
  return absl::UnknownError(absl::StrCat(path, ": ", parsed["value"].value("error", ""), ": ",
                                         parsed["value"].value("message", "").substr(0, 500)));
}

absl::StatusOr<nlohmann::json> Browser::Command(const std::string& name, const nlohmann::json& parameters) {
  return Post("/goog/cdp/execute", {{"cmd", name}, {"params", parameters}});
}

absl::Status Browser::Open(const std::string& url) { return Post("/url", {{"url", url}}).status(); }

absl::StatusOr<nlohmann::json> Browser::Run(const std::string& script, nlohmann::json arguments) {
  return Post("/execute/sync", {{"script", script}, {"args", std::move(arguments)}});
}

absl::StatusOr<nlohmann::json> Browser::RunAsync(const std::string& script) {
  return Post("/execute/async", {{"script", script}, {"args", nlohmann::json::array()}});
}

absl::Status Browser::Await(const std::string& expression) {
  const std::string script = absl::StrCat(
      "const done = arguments[0], until = performance.now() + ", kAwaitMs,
      ";\n"
      "(function look() { if (",
      expression, ") done(true); else if (performance.now() > until) done(false); else setTimeout(look, 20); })();");
  LODESTONE_ASSIGN_OR_RETURN(const nlohmann::json came, RunAsync(script));
  if (came == true) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("in ", kAwaitMs / 1000, " s never: ", expression));
}

absl::Status Browser::Click(const std::string& selector) {
  // Out from under what sticks to the top.
  LODESTONE_RETURN_IF_ERROR(
      Run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", {selector}).status());
  LODESTONE_ASSIGN_OR_RETURN(const nlohmann::json element,
                             Post("/element", {{"using", "css selector"}, {"value", selector}}));
  return Post(absl::StrCat("/element/", element.value(kElement, ""), "/click"), nlohmann::json::object()).status();
}

absl::Status Browser::Press(const std::string& keys) {
  nlohmann::json actions = nlohmann::json::array();
  for (size_t at = 0; at < keys.size();) {
    const auto byte = static_cast<unsigned char>(keys[at]);
    const size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;  // Of a character in UTF-8.
    for (const char* const type : {"keyDown", "keyUp"}) {
      actions.push_back({{"type", type}, {"value", keys.substr(at, length)}});
    }
    at += length;
  }
  const nlohmann::json keyboard = {{"type", "key"}, {"id", "keyboard"}, {"actions", actions}};
  return Post("/actions", {{"actions", nlohmann::json::array({keyboard})}}).status();
}

absl::Status Browser::SetViewport(int width, int height, bool phone) {
  return Command("Emulation.setDeviceMetricsOverride",
                 {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", phone}})
      .status();
}

absl::Status Browser::SetColorScheme(const std::string& scheme) {
  const nlohmann::json feature = {{"name", "prefers-color-scheme"}, {"value", scheme}};
  return Command("Emulation.setEmulatedMedia", {{"features", nlohmann::json::array({feature})}}).status();
}

absl::Status Browser::TakeScreenshot(const std::string& path, int height_max) {
  LODESTONE_ASSIGN_OR_RETURN(
      const nlohmann::json size,
      Run("return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"));
  const nlohmann::json clip = {
      {"x", 0}, {"y", 0}, {"width", size[0]}, {"height", std::min(size[1].get<int>(), height_max)}, {"scale", 1}};
  LODESTONE_ASSIGN_OR_RETURN(
      const nlohmann::json shot,
      Command("Page.captureScreenshot", {{"format", "png"}, {"clip", clip}, {"captureBeyondViewport", true}}));
  std::string bytes;
  if (!absl::Base64Unescape(shot.value("data", ""), &bytes) || bytes.empty()) {
    return absl::InternalError("the screenshot is no base64");
  }
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  return file ? absl::OkStatus() : absl::InternalError(absl::StrCat(path, ": cannot be written"));
}

absl::StatusOr<std::vector<std::string>> Browser::TakeComplaints() {
  LODESTONE_ASSIGN_OR_RETURN(const nlohmann::json log, Post("/se/log", {{"type", "browser"}}));
  std::vector<std::string> complaints;
  for (const nlohmann::json& entry : log) {
    complaints.push_back(absl::StrCat(entry.value("level", ""), ": ", entry.value("message", "")));
  }
  return complaints;
}

}  // namespace lodestone::server

// A headless Chromium, driven through chromedriver by the WebDriver protocol (w3.org/TR/webdriver2): what a person does
// at a page. Needs Debian's packages chromium and chromium-driver, which tools/install --check installs.
//
// Not thread-safe. The processes end with this object, or with the thread that made it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/local/child_process.h"

namespace lodestone::server {

class Browser {
 public:
  // Why no browser can be started here; empty: one can.
  static std::string Obstacle();
  // Keeps what it writes in `folder`, which exists.
  static absl::StatusOr<std::unique_ptr<Browser>> Start(const std::string& folder);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  absl::Status Open(const std::string& url);
  // What the body of a JavaScript function returns: "return document.title"; `arguments` are its arguments.
  absl::StatusOr<nlohmann::json> Run(const std::string& script, nlohmann::json arguments = nlohmann::json::array());
  // The same of a script that calls its last argument with its result, in two minutes.
  absl::StatusOr<nlohmann::json> RunAsync(const std::string& script);
  // Waits until the expression is true; DEADLINE_EXCEEDED, naming it, after 60 s.
  absl::Status Await(const std::string& expression);

  // Clicks the first element that the CSS selector finds, where it is seen; an error if something covers it.
  absl::Status Click(const std::string& selector);
  // Presses keys, each as its character; kTab and so on for those that have none.
  absl::Status Press(const std::string& keys);
  static constexpr char kTab[] = "\uE004";
  static constexpr char kEnter[] = "\uE007";
  static constexpr char kEscape[] = "\uE00C";
  static constexpr char kEnd[] = "\uE010";
  static constexpr char kHome[] = "\uE011";
  static constexpr char kRight[] = "\uE014";

  // Of the next Open on. `phone`: as a phone lays a page out.
  absl::Status SetViewport(int width, int height, bool phone);
  // What prefers-color-scheme says: "light" or "dark".
  absl::Status SetColorScheme(const std::string& scheme);
  // Writes a PNG file of the whole page, up to `height_max` pixels of it.
  absl::Status TakeScreenshot(const std::string& path, int height_max = 4000);
  // What the page has complained about since the last call: errors of scripts, of the policy, of the network.
  absl::StatusOr<std::vector<std::string>> TakeComplaints();

 private:
  Browser(std::unique_ptr<psctl::Child> driver, int port);
  absl::Status StartSession(const std::string& folder);
  // Of the session: "/url".
  absl::StatusOr<nlohmann::json> Post(const std::string& path, const nlohmann::json& body);
  // Of Chromium's own protocol.
  absl::StatusOr<nlohmann::json> Command(const std::string& name, const nlohmann::json& parameters);

  const std::unique_ptr<psctl::Child> driver_;
  httplib::Client client_;
  std::string session_;  // Its path; empty: there is none.
};

}  // namespace lodestone::server

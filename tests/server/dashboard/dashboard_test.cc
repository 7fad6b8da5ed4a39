#include "server/dashboard/dashboard.h"

#include <openssl/sha.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "tests/configs/deployment.h"
#include "tests/server/dashboard/page_cases.h"
#include "tests/server/dashboard/page_server.h"

namespace lodestone::server {
namespace {

using testing::HasSubstr;

constexpr uint64_t kNowMs = 1'795'295'819'000;
constexpr size_t kPageBytesMax = 200 << 10;

std::map<std::string, HttpServer::Handler> HandlersOf(const PageCase& page) {
  return PageHandlers({[page] { return page.status; }, [page](const v1::EventsRequest&) { return page.events; },
                       [page] { return page.history; }});
}

HttpResponse Ask(const std::string& path, const std::map<std::string, std::string>& parameters = {},
                 const PageCase& page = MakePageCase("training", kNowMs)) {
  HttpRequest request;
  request.path = path;
  request.parameters = parameters;
  return HandlersOf(page).at(path)(request);
}

std::string Html() { return Ask("/").body; }

// What stands between <tag> and </tag>.
std::string ElementText(const std::string& html, const std::string& tag) {
  const size_t begin = html.find("<" + tag + ">") + tag.size() + 2, end = html.find("</" + tag + ">", begin);
  EXPECT_NE(end, std::string::npos) << tag;
  EXPECT_EQ(html.find("<" + tag, end), std::string::npos) << "there is one " << tag;
  return html.substr(begin, end - begin);
}

std::string Policy(const std::string& html) {
  std::smatch found;
  const std::regex policy("<meta http-equiv=\"Content-Security-Policy\" content=\"([^\"]*)\">");
  return std::regex_search(html, found, policy) ? found[1].str() : "";
}

// As a policy names a source: 'sha256-BASE64'.
std::string Digest(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  const absl::string_view bytes(reinterpret_cast<const char*>(digest), sizeof(digest));
  return absl::StrCat("'sha256-", absl::Base64Escape(bytes), "'");
}

template <typename Message>
void ExpectReadsBack(const std::string& json, const Message& message) {
  Message again;
  const auto read = google::protobuf::util::JsonStringToMessage(json, &again);
  ASSERT_TRUE(read.ok()) << read.ToString();
  EXPECT_EQ(again.DebugString(), message.DebugString());
}

TEST(PageApi, GivesAllThatTheMessagesHoldAsJson) {
  for (const char* const name : kPageCases) {
    SCOPED_TRACE(name);
    const PageCase page = MakePageCase(name, kNowMs);
    ExpectReadsBack(Ask("/api/status", {}, page).body, page.status);
    ExpectReadsBack(Ask("/api/events", {}, page).body, page.events);
    ExpectReadsBack(Ask("/api/history", {}, page).body, page.history);
  }
}

TEST(PageApi, NamesFieldsAsTheProtoDoesAndLeavesNoneOut) {
  PageCase page;
  page.status.mutable_server()->set_pushes(UINT64_MAX);
  const HttpResponse response = Ask("/api/status", {}, page);
  EXPECT_EQ(response.code, 200);
  EXPECT_EQ(response.content_type, "application/json");
  const auto json = nlohmann::json::parse(response.body);
  EXPECT_EQ(json["server"]["pushes"], "18446744073709551615");
  EXPECT_EQ(json["server"]["pushes_refused"], "0");
  EXPECT_EQ(json["server"]["last_refusal"], "");
  EXPECT_EQ(json["tables"], nlohmann::json::array());
  EXPECT_FALSE(json.contains("cluster"));
}

TEST(PageApi, LeavesOutTheLoadsOfShards) {
  PageCase page;
  for (uint32_t shard = 0; shard < 4096; ++shard) page.status.add_shards()->set_shard(shard);
  page.status.add_hot_keys()->set_key(42);
  const auto json = nlohmann::json::parse(Ask("/api/status", {}, page).body);
  EXPECT_EQ(json["shards"], nlohmann::json::array());
  EXPECT_EQ(json["hot_keys"].size(), 1u);
}

TEST(PageApi, TextThatIsNoUtf8MakesNoJsonThatCannotBeRead) {
  PageCase page;
  page.status.mutable_server()->set_last_refusal("a\xff\xc3(b");
  const HttpResponse response = Ask("/api/status", {}, page);
  const auto json = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(json.is_discarded()) << response.body;
  EXPECT_THAT(json["server"]["last_refusal"].get<std::string>(), testing::StartsWith("a"));
}

TEST(PageApi, PassesOnAfterWhichEventToTell) {
  uint64_t asked = 0;
  const auto handlers = PageHandlers({[] { return v1::StatusResponse(); },
                                      [&](const v1::EventsRequest& request) {
                                        asked = request.after_id();
                                        return v1::EventsResponse();
                                      },
                                      [] { return v1::HistoryResponse(); }});
  for (const uint64_t id : {uint64_t{0}, uint64_t{17}, UINT64_MAX}) {
    HttpRequest request;
    request.path = "/api/events";
    request.parameters["after_id"] = std::to_string(id);
    asked = 1;
    EXPECT_EQ(handlers.at("/api/events")(request).code, 200);
    EXPECT_EQ(asked, id);
  }
  asked = 1;
  HttpRequest request;
  request.path = "/api/events";
  EXPECT_EQ(handlers.at("/api/events")(request).code, 200);
  EXPECT_EQ(asked, 0u) << "all of them";
}

TEST(PageApi, RefusesAnEventIdThatIsNone) {
  for (const char* const id : {"", "x", "-1", "1.5", "18446744073709551616", "1x"}) {
    const HttpResponse response = Ask("/api/events", {{"after_id", id}});
    EXPECT_EQ(response.code, 400) << id;
    EXPECT_THAT(response.body, HasSubstr(absl::StrCat("after_id: \"", id, "\" is no whole number")));
    EXPECT_THAT(response.content_type, HasSubstr("text/plain")) << "what it repeats is not read as markup";
  }
}

TEST(PageApi, RefusesParametersThatItDoesNotKnow) {
  for (const char* const path : {"/api/status", "/api/events", "/api/history"}) {
    const HttpResponse response = Ask(path, {{"afterid", "1"}});
    EXPECT_EQ(response.code, 400) << path;
    EXPECT_THAT(response.body, HasSubstr("not \"afterid\""));
    EXPECT_THAT(response.body, HasSubstr(path));
  }
}

TEST(Page, IsWhateverTheAddressEndsIn) {
  const HttpResponse response = Ask("/", {{"utm_source", "chat"}});
  EXPECT_EQ(response.code, 200);
  EXPECT_EQ(response.content_type, "text/html; charset=utf-8");
  EXPECT_EQ(response.body, Html());
}

TEST(Page, HoldsAllThatItNeeds) {
  const std::string html = Html();
  EXPECT_LT(html.size(), kPageBytesMax);
  for (const char* const reference :
       {"http://", "https://", "//cdn", "src=", "@import", "url(", "import(", "stylesheet"}) {
    EXPECT_FALSE(absl::StrContains(html, reference)) << reference;
  }
  for (const char* const placeholder : {"@POLICY@", "@STYLE@", "@SCRIPT@"}) {
    EXPECT_FALSE(absl::StrContains(html, placeholder)) << placeholder;
  }
  EXPECT_THAT(html, HasSubstr("<html lang=\"en\">"));
  EXPECT_THAT(html, HasSubstr("width=device-width"));
}

TEST(Page, ItsPolicyLetsInItsOwnStyleAndScriptOnly) {
  const std::string html = Html(), policy = Policy(html);
  EXPECT_EQ(policy, absl::StrCat("default-src 'none'; script-src ", Digest(ElementText(html, "script")), "; style-src ",
                                 Digest(ElementText(html, "style")),
                                 "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"));
  EXPECT_LT(html.find("Content-Security-Policy"), html.find("<style")) << "it counts from where it stands on";
  // The policy would turn these off.
  const std::string markup = html.substr(html.find("</style>"), html.find("<script>") - html.find("</style>"));
  EXPECT_FALSE(std::regex_search(markup, std::regex("\\s(style|on[a-z]+)=")));
}

TEST(Page, NeverReadsTextAsMarkupOrScript) {
  const std::string script = ElementText(Html(), "script");
  for (const char* const danger : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                                   "new Function", "DOMParser", "createContextualFragment", "srcdoc"}) {
    EXPECT_FALSE(absl::StrContains(script, danger)) << danger;
  }
}

TEST(Page, KeepsATokenInTheTabOnly) {
  const std::string script = ElementText(Html(), "script");
  EXPECT_FALSE(absl::StrContains(script, "document.cookie"));
  // What outlives the tab: the theme.
  const std::regex kept("localStorage\\.setItem\\(([A-Z_]+)");
  for (auto it = std::sregex_iterator(script.begin(), script.end(), kept); it != std::sregex_iterator(); ++it) {
    EXPECT_EQ((*it)[1], "THEME_KEY");
  }
}

TEST(Page, IsServedByAnHttpServer) {
  PageServer server;
  server.Set(MakePageCase("training", kNowMs));
  httplib::Client client(server.url().substr(0, server.url().size() - 1));
  const httplib::Result html = client.Get("/");
  ASSERT_TRUE(html) << html.error();
  EXPECT_EQ(html->status, 200);
  EXPECT_EQ(html->body, Html());
  const httplib::Result events = client.Get("/api/events?after_id=4");
  ASSERT_TRUE(events) << events.error();
  EXPECT_EQ(nlohmann::json::parse(events->body)["events"].size(), 1u);
  const httplib::Result wrong = client.Get("/api/events?after_id=four");
  ASSERT_TRUE(wrong) << wrong.error();
  EXPECT_EQ(wrong->status, 400);
}

// Runs embed.sh on these sources; its output, both streams.
std::string Embed(const std::string& html, const std::string& css, const std::string& script, int* exit_code) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/");
  std::ofstream(folder + "x.html") << html;
  std::ofstream(folder + "x.css") << css;
  std::ofstream(folder + "x.js") << script;
  const std::string program =
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/server/dashboard/embed.sh");
  return RunShell(absl::StrCat("cd ", folder, " && bash ", program, " x.html x.css x.js 2>&1"), exit_code);
}

TEST(Embedding, PutsEachSourceInItsPlaceAsItIs) {
  int exit_code = 1;
  const std::string made =
      Embed("<a>\n@POLICY@\n@STYLE@\n@SCRIPT@\n", "p { x: \"\\\\\"; }\n", "const s = `$x\\n%s`;\n", &exit_code);
  EXPECT_EQ(exit_code, 0) << made;
  EXPECT_THAT(made, HasSubstr("<style>p { x: \"\\\\\"; }\n</style>\n"));
  EXPECT_THAT(made, HasSubstr("<script>'use strict';\nconst s = `$x\\n%s`;\n</script>\n"));
  EXPECT_THAT(made, HasSubstr(Digest("'use strict';\nconst s = `$x\\n%s`;\n")));
}

TEST(Embedding, RefusesSourcesThatWouldEndTheirElementTooEarly) {
  for (const char* const script : {"'</script>'", "'</SCRIPT'", "'<!--'", "')PAGE\"'"}) {
    int exit_code = 0;
    const std::string said = Embed("@SCRIPT@\n", "p {}\n", script, &exit_code);
    EXPECT_NE(exit_code, 0) << script;
    EXPECT_THAT(said, HasSubstr("must not be in"));
  }
  int exit_code = 0;
  EXPECT_THAT(Embed("@STYLE@\n", "/* </style> */\n", "1;\n", &exit_code), HasSubstr("</style must not be in x.css"));
  EXPECT_NE(exit_code, 0);
}

}  // namespace
}  // namespace lodestone::server

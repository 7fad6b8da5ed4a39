// The serving of predictions: what a request brings, what is answered, and by which protocol.
#include <cmath>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/serving.grpc.pb.h"
#include "tests/common/http/http_client.h"
#include "tests/common/security/test_certificates.h"
#include "tests/worker/data/test_files.h"
#include "tools/psctl/model/predictor.h"
#include "tools/psctl/serving/prediction_json.h"
#include "tools/psctl/serving/prediction_server.h"
#include "tools/psctl/serving/prediction_service.h"
#include "worker/model/model.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A model of two numbers: x + 10 y + bias, whose parameters the test sets.
class LinearSource final : public ParameterSource {
 public:
  // `loss`: logistic (classes no and yes) or squared.
  explicit LinearSource(v1::ModelConfig::Loss loss) {
    const bool classes = loss != v1::ModelConfig::SQUARED;
    v1::Config config = worker::FilesConfig(
        v1::DataConfig::CSV,
        {worker::WriteFile("linear.csv", classes ? "x,y,z\n1,2,no\n2,4,yes\n" : "x,y,z\n1,2,3\n2,4,4\n")});
    config.mutable_data()->mutable_csv()->set_label("z");
    config.mutable_data()->mutable_csv()->add_numeric("x");
    config.mutable_data()->mutable_csv()->add_numeric("y");
    config.mutable_model()->set_type(v1::ModelConfig::LINEAR);
    config.mutable_model()->set_loss(loss);
    const auto data =
        worker::LoadData(config, classes ? worker::LabelKind::kClass : worker::LabelKind::kNumber, {}, false, nullptr);
    EXPECT_TRUE(data.ok()) << data.status();
    const auto model = worker::Model::Create(config, data->schema);
    EXPECT_TRUE(model.ok()) << model.status();
    description_ = std::make_shared<v1::ModelDescription>((*model)->tables()[0].model());
    DenseTables tables;
    for (const v1::TableSpec& table : (*model)->tables()) {
      uint64_t elements = 1;
      for (const uint64_t extent : table.dense().dims()) elements *= extent;
      tables.push_back(elements == 2 ? std::vector<float>{1, 10} : std::vector<float>(elements, 0));
    }
    dense_ = std::make_shared<const DenseTables>(std::move(tables));
  }
  const std::shared_ptr<const v1::ModelDescription>& description() const override { return description_; }
  const std::string& name() const override { return name_; }
  absl::Status Read(const worker::KeyedBatch&, BatchParameters* parameters) override {
    if (!health_.ok()) return health_;
    parameters->dense = dense_;
    parameters->pointers.clear();
    for (const std::vector<float>& table : *dense_) parameters->pointers.push_back(table.data());
    parameters->version = 7;
    return absl::OkStatus();
  }
  absl::Status Health() const override { return health_; }
  void Fail(absl::Status status) { health_ = std::move(status); }

 private:
  std::shared_ptr<const v1::ModelDescription> description_;
  std::shared_ptr<const DenseTables> dense_;
  const std::string name_ = "a test's model";
  absl::Status health_;
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

v1::PredictRequest OfLines(const std::string& header, const std::vector<std::string>& lines) {
  v1::PredictRequest request;
  request.mutable_lines()->set_header(header);
  for (const std::string& line : lines) request.mutable_lines()->add_lines(line);
  return request;
}

std::string ErrorOf(PredictionService* service, const v1::PredictRequest& request) {
  return std::string(service->Predict(request).status().message());
}

class Served : public testing::Test {
 protected:
  Served() { service_ = *PredictionService::Create(&source_); }
  LinearSource source_{v1::ModelConfig::LOGISTIC};
  std::unique_ptr<PredictionService> service_;
};

TEST_F(Served, LinesAndColumnsGiveClassesScoresAndProbabilities) {
  v1::PredictRequest lines = OfLines("y,x", {"0.1,-2", "-0.2,3"});
  v1::PredictRequest columns;
  v1::Columns::Column& x = *columns.mutable_columns()->add_columns();
  x.set_name("x");
  x.add_numbers(-2);
  x.add_numbers(3);
  v1::Columns::Column& y = *columns.mutable_columns()->add_columns();
  y.set_name("y");
  y.add_texts("0.1");
  y.add_texts("-0.2");
  for (v1::PredictRequest* request : {&lines, &columns}) {
    request->set_probabilities(true);
    const auto response = service_->Predict(*request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_THAT(response->classes(), ElementsAre("no", "yes"));
    EXPECT_THAT(response->predicted(), ElementsAre(0u, 1u));
    ASSERT_EQ(response->scores_size(), 2);
    EXPECT_NEAR(response->scores(0), Sigmoid(-1), 1e-6);
    EXPECT_NEAR(response->scores(1), Sigmoid(1), 1e-6);
    ASSERT_EQ(response->probabilities_size(), 4);
    EXPECT_EQ(response->probabilities(1), response->scores(0));
    EXPECT_NEAR(response->probabilities(0), 1 - Sigmoid(-1), 1e-6);
    EXPECT_EQ(response->model(), "a test's model");
    EXPECT_EQ(response->version(), 7u);
  }
}

TEST_F(Served, ErrorsSayWhichSampleAndWhichColumn) {
  EXPECT_THAT(ErrorOf(service_.get(), OfLines("x,y", {"1,2", "1,two"})),
              HasSubstr("sample 1: byte 3: \"two\" in column \"y\" is not a number"));
  EXPECT_THAT(ErrorOf(service_.get(), OfLines("x", {"1"})), HasSubstr("there is no column \"y\""));
  EXPECT_THAT(ErrorOf(service_.get(), OfLines("", {"1,2"})),
              HasSubstr("set `header` to the line that names the columns"));
  EXPECT_THAT(ErrorOf(service_.get(), OfLines("x,y", {})), HasSubstr("no samples"));
  EXPECT_THAT(ErrorOf(service_.get(), {}), HasSubstr("neither lines nor columns nor images"));
  v1::PredictRequest columns;
  v1::Columns::Column& x = *columns.mutable_columns()->add_columns();
  x.set_name("x");
  x.add_numbers(1);
  v1::Columns::Column& y = *columns.mutable_columns()->add_columns();
  y.set_name("y");
  EXPECT_THAT(ErrorOf(service_.get(), columns), HasSubstr("column \"y\" has 0 values, and \"x\" has 1"));
  y.add_texts("two");
  EXPECT_THAT(ErrorOf(service_.get(), columns), HasSubstr("sample 0: \"two\" in column \"y\" is not a number"));
}

// Regression: what reads one kind of sample was used for another.
TEST_F(Served, SamplesOfAnotherKindAreRefusedAlsoAfterGoodOnes) {
  ASSERT_TRUE(service_->Predict(OfLines("x,y", {"1,2"})).ok());
  for (int i = 0; i < 100; ++i) {  // Whichever desk takes it.
    v1::PredictRequest images;
    images.mutable_images()->add_images("ab");
    EXPECT_THAT(ErrorOf(service_.get(), images), HasSubstr("takes no images"));
    ASSERT_TRUE(service_->Predict(OfLines(i % 2 == 0 ? "y,x" : "x,y", {"1,2"})).ok());
  }
}

TEST_F(Served, TooManySamplesAreRefused) {
  v1::PredictRequest request = OfLines("x,y", std::vector<std::string>(limits::kPredictSamplesMax + 1, "1,2"));
  EXPECT_TRUE(absl::IsResourceExhausted(service_->Predict(request).status()));
  request.mutable_lines()->mutable_lines()->RemoveLast();
  const auto response = service_->Predict(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->scores_size(), static_cast<int>(limits::kPredictSamplesMax));
}

TEST_F(Served, ManyThreadsGetTheirOwnAnswers) {
  std::latch go(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      go.wait();
      for (int i = 0; i < 200; ++i) {
        const auto response = service_->Predict(OfLines("x,y", {absl::StrCat(t - 4, ",0")}));
        ASSERT_TRUE(response.ok()) << response.status();
        ASSERT_NEAR(response->scores(0), Sigmoid(t - 4), 1e-6);
      }
    });
  }
  go.count_down();
  for (std::thread& thread : threads) thread.join();
}

TEST(ServedNumbers, HaveValuesAndNoProbabilities) {
  LinearSource source(v1::ModelConfig::SQUARED);
  const auto service = *PredictionService::Create(&source);
  v1::PredictRequest request = OfLines("x,y", {"2,3"});
  const auto response = service->Predict(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(response->scores(), ElementsAre(32.0f));
  EXPECT_EQ(response->predicted_size(), 0);
  EXPECT_EQ(nlohmann::json::parse(JsonOf(*response))["predictions"][0]["value"], 32);
  request.set_probabilities(true);
  EXPECT_THAT(ErrorOf(service.get(), request), HasSubstr("no probabilities"));
}

// A model of two labels, whose scores are those of its prior: all tables are zeros.
class LabelsSource final : public ParameterSource {
 public:
  LabelsSource() {
    v1::Config config = worker::FilesConfig(v1::DataConfig::CSV,
                                            {worker::WriteFile("labels.csv", "x,a,b\n1,0,1\n2,1,\n3,0,0\n4,0,\n")});
    config.mutable_data()->mutable_csv()->add_labels("a");
    config.mutable_data()->mutable_csv()->add_labels("b");
    config.mutable_data()->mutable_csv()->add_numeric("x");
    config.mutable_model()->set_type(v1::ModelConfig::MULTITASK);
    config.mutable_model()->add_hidden(2);
    const auto data = worker::LoadData(config, worker::LabelKind::kSeveral, {}, false, nullptr);
    EXPECT_TRUE(data.ok()) << data.status();
    const auto model = worker::Model::Create(config, data->schema);
    EXPECT_TRUE(model.ok()) << model.status();
    description_ = std::make_shared<v1::ModelDescription>((*model)->tables()[0].model());
    for (const v1::TableSpec& table : (*model)->tables()) {
      uint64_t elements = 1;
      for (const uint64_t extent : table.dense().dims()) elements *= extent;
      tables_.emplace_back(elements, 0.0f);
    }
  }
  const std::shared_ptr<const v1::ModelDescription>& description() const override { return description_; }
  const std::string& name() const override { return name_; }
  absl::Status Read(const worker::KeyedBatch&, BatchParameters* parameters) override {
    parameters->pointers.clear();
    for (const std::vector<float>& table : tables_) parameters->pointers.push_back(table.data());
    return absl::OkStatus();
  }
  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  std::shared_ptr<const v1::ModelDescription> description_;
  DenseTables tables_;
  const std::string name_ = "a test's model of labels";
};

TEST(ServedLabels, HaveAScoreEach) {
  LabelsSource source;
  const auto service = *PredictionService::Create(&source);
  v1::PredictRequest request = OfLines("x", {"2", "5"});
  const auto response = service->Predict(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(response->labels(), ElementsAre("a", "b"));
  // One half is added to each count: 1.5 to 3.5 of a, 1.5 to 1.5 of b.
  EXPECT_THAT(response->scores(),
              ElementsAre(testing::FloatNear(0.3f, 1e-6f), 0.5f, testing::FloatNear(0.3f, 1e-6f), 0.5f));
  const auto json = nlohmann::json::parse(JsonOf(*response));
  EXPECT_EQ(json["labels"][1], "b");
  ASSERT_EQ(json["predictions"].size(), 2u);
  EXPECT_EQ(json["predictions"][1]["scores"][1], 0.5);
  request.set_probabilities(true);
  EXPECT_THAT(ErrorOf(service.get(), request), HasSubstr("leave `probabilities` out"));
}

TEST(PredictionJson, ReadsSamplesLinesAndImages) {
  const auto samples = PredictRequestOf(
      R"({"samples": [{"a": 1.5, "b": "x"}, {"b": null, "c": -3}, {"a": 18446744073709551615}], "probabilities": true})");
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_TRUE(samples->probabilities());
  ASSERT_EQ(samples->columns().columns_size(), 3);
  EXPECT_EQ(samples->columns().columns(0).name(), "a");
  EXPECT_THAT(samples->columns().columns(0).texts(), ElementsAre("1.5", "", "18446744073709551615"));
  EXPECT_THAT(samples->columns().columns(1).texts(), ElementsAre("x", "", ""));
  EXPECT_THAT(samples->columns().columns(2).texts(), ElementsAre("", "-3", ""));
  const auto lines = PredictRequestOf(R"({"header": "a,b", "lines": ["1,x", "2,y"]})");
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_EQ(lines->lines().header(), "a,b");
  EXPECT_THAT(lines->lines().lines(), ElementsAre("1,x", "2,y"));
  const auto images = PredictRequestOf(R"({"images": [[0, 65, 255]]})");
  ASSERT_TRUE(images.ok()) << images.status();
  EXPECT_THAT(images->images().images(), ElementsAre(std::string("\0A\xff", 3)));
}

TEST(PredictionJson, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"{", "no JSON"},
      {"[]", "no JSON object"},
      {"{}", "give one of"},
      {R"({"samples": [], "lines": []})", "give one of"},
      {R"({"samples": [1]})", "sample 0 is no object"},
      {R"({"samples": [{"a": 1}, {"a": [2]}]})", "sample 1: column \"a\" is neither"},
      {R"({"lines": [3]})", "line 0 is no text"},
      {R"({"lines": "3"})", "`lines` is no list"},
      {R"({"images": [[0, 256]]})", "image 0: pixel 1"},
      {R"({"samples": [], "header": "a"})", "`header` is for `lines`"},
      {R"({"samples": [], "probability": true})", "there is no `probability`"},
      {R"({"samples": [], "probabilities": 1})", "neither true nor false"},
  };
  for (const auto& [json, what] : kWrong) {
    const absl::Status status = PredictRequestOf(json).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what)) << json;
  }
  std::string deep(1'000'000, '[');
  EXPECT_FALSE(PredictRequestOf(deep).ok());
}

std::string Post(uint16_t port, const std::string& body) {
  return AskRaw(
      port, absl::StrCat("POST /predict HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
}

TEST(PredictionServerTest, AnswersTheSameByGrpcAndByHttpAndIsReadyWhileItsSourceIs) {
  LinearSource source(v1::ModelConfig::LOGISTIC);
  const auto server =
      PredictionServer::Start(&source, {.listen = "127.0.0.1:0", .http_listen = "127.0.0.1:0", .credentials = nullptr});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub =
      v1::Predictor::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", (*server)->port()), limits::kPredictBytesMax));
  const auto ask = [&](const v1::PredictRequest& request, v1::PredictResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return stub->Predict(&context, request, response);
  };
  v1::PredictResponse response;
  ASSERT_TRUE(ask(OfLines("x,y", {"0.3,0.2"}), &response).ok());
  const uint16_t http = (*server)->http_port();
  const std::string answer = Post(http, R"({"samples": [{"y": "0.2", "x": 0.3, "unused": "x"}]})");
  EXPECT_EQ(CodeOf(answer), 200);
  const nlohmann::json json = nlohmann::json::parse(BodyOf(answer));
  EXPECT_EQ(static_cast<float>(json["predictions"][0]["score"].get<double>()), response.scores(0));
  EXPECT_EQ(json["predictions"][0]["class"], "yes");
  EXPECT_EQ(json["model"], "a test's model");

  EXPECT_EQ(ask(OfLines("x,y", {"a,2"}), &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const std::string refused = Post(http, R"({"samples": [{"x": "a", "y": 2}]})");
  EXPECT_EQ(CodeOf(refused), 400);
  EXPECT_THAT(nlohmann::json::parse(BodyOf(refused))["error"].get<std::string>(),
              HasSubstr("sample 0: \"a\" in column \"x\""));
  EXPECT_EQ(CodeOf(Get(http, "/predict")), 405);
  EXPECT_EQ(CodeOf(Get(http, "/readyz")), 200);
  EXPECT_THAT(Get(http, "/metrics"), HasSubstr("lodestone_serve_predictions_total"));
  source.Fail(absl::UnavailableError("the cluster is away"));
  EXPECT_EQ(CodeOf(Get(http, "/readyz")), 503);
  EXPECT_EQ(CodeOf(Post(http, R"({"lines": ["1,2"], "header": "x,y"})")), 503);
  EXPECT_EQ(ask(OfLines("x,y", {"1,2"}), &response).error_code(), grpc::StatusCode::UNAVAILABLE);
  (*server)->Stop();
}

TEST(PredictionServerTest, WithACertificateItIsServedByTlsAndOnlyToClientsThatShowTheirs) {
  const TestAuthority authority("test");
  const std::string folder = MakeTestFolder();
  const auto config_of = [&](const std::string& name) {
    const TestAuthority::Issued issued = authority.Issue({.common_name = name});
    v1::SecurityConfig config;
    config.set_certificate(absl::StrCat(folder, "/", name, ".pem"));
    config.set_key(absl::StrCat(folder, "/", name, ".key"));
    config.set_authorities(folder + "/authorities.pem");
    PutFile(config.certificate(), issued.certificate);
    PutFile(config.key(), issued.key);
    PutFile(config.authorities(), authority.pem());
    return config;
  };
  v1::SecurityConfig of_server = config_of("server"), of_client = config_of("client"), of_stranger;
  of_server.set_client_certificates(true);
  of_stranger.set_authorities(of_client.authorities());
  LinearSource source(v1::ModelConfig::LOGISTIC);
  const auto server = PredictionServer::Start(
      &source, {.listen = "127.0.0.1:0", .http_listen = "127.0.0.1:0", .credentials = *Credentials::Make(of_server)});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto ask = [&](const CredentialsRef& credentials) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::PredictResponse response;
    return v1::Predictor::NewStub(
               MakeChannel(absl::StrCat("127.0.0.1:", (*server)->port()), limits::kPredictBytesMax, credentials))
        ->Predict(&context, OfLines("x,y", {"1,2"}), &response)
        .ok();
  };
  EXPECT_TRUE(ask(*Credentials::Make(of_client)));
  EXPECT_FALSE(ask(*Credentials::Make(of_stranger)));
  EXPECT_FALSE(ask(nullptr));
  EXPECT_NE(CodeOf(Get((*server)->http_port(), "/healthz")), 200);  // It is https.
}

TEST(PredictionServerTest, APortThatIsTakenIsAnError) {
  LinearSource source(v1::ModelConfig::LOGISTIC);
  const auto server =
      PredictionServer::Start(&source, {.listen = "127.0.0.1:0", .http_listen = "", .credentials = nullptr});
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string taken = absl::StrCat("127.0.0.1:", (*server)->port());
  const auto second = PredictionServer::Start(&source, {.listen = taken, .http_listen = "", .credentials = nullptr});
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(taken));
}

}  // namespace
}  // namespace lodestone::psctl

// What predictions of a kept model take: a request of some candidates beside the matrix products that it consists of,
// and psctl predict beside its parts.
//
//   serving MODEL.safetensors --data FILE                        as text lines; csv with its header
//
// The server is in the same process as its client, and both use loopback; the client's time includes everything.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/client_context.h"
#include "kernels/blas_core.h"
#include "proto/serving.grpc.pb.h"
#include "tools/psctl/model/predictor.h"
#include "tools/psctl/serving/prediction_server.h"
#include "tools/psctl/serving/prediction_service.h"
#include "tools/psctl/verbs/open_model.h"
#include "tools/psctl/verbs/predict.h"
#include "worker/data/sample_stream.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/model_plan.h"

namespace lodestone::psctl {
namespace {

struct Options {
  std::string model;
  std::string data;
  size_t candidates = 1000;
  size_t requests = 1000;
  size_t samples = 200'000;
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs `work` so often, and prints the quantiles of its time.
absl::Status Time(const char* name, size_t times, const std::function<absl::Status()>& work) {
  std::vector<double> seconds;
  for (size_t i = 0; i < times + times / 10; ++i) {
    const double began = Now();
    LODESTONE_RETURN_IF_ERROR(work());
    if (i >= times / 10) seconds.push_back(Now() - began);  // The first ones are for caches.
  }
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) { return seconds[static_cast<size_t>(share * (seconds.size() - 1))] * 1e3; };
  std::printf("%-34s %8.3f ms p50 %8.3f ms p99 %8.3f ms max\n", name, at(0.5), at(0.99), at(1));
  return absl::OkStatus();
}

// The products of a forward pass, on memory of their own.
class Products {
 public:
  Products(const worker::Model& model, size_t rows) : backend_(model.backend()), rows_(rows) {
    for (const auto* layers : {&model.plan().bottom, &model.plan().mlp}) {
      for (const worker::DenseLayer& layer : *layers) {
        layers_.push_back({layer.in, layer.out, std::vector<float>(rows * layer.in, 0.5f),
                           std::vector<float>(layer.in * layer.out, 0.5f), std::vector<float>(rows * layer.out)});
      }
    }
  }
  absl::Status Run() {
    for (Layer& layer : layers_) {
      backend_->MatMul(false, false, rows_, layer.out, layer.in, 1, layer.x.data(), layer.w.data(), 0, layer.y.data());
    }
    return backend_->Finish();
  }

 private:
  struct Layer {
    size_t in, out;
    std::vector<float> x, w, y;
  };
  kernels::Backend* const backend_;
  const size_t rows_;
  std::vector<Layer> layers_;
};

// A request of the first candidates of the file.
absl::StatusOr<v1::PredictRequest> RequestOf(const Options& options, const v1::DataDescription& data) {
  v1::PredictRequest request;
  std::ifstream file(options.data);
  std::string line;
  if (data.header() && std::getline(file, line)) request.mutable_lines()->set_header(line);
  while (request.lines().lines_size() < static_cast<int>(options.candidates) && std::getline(file, line)) {
    request.mutable_lines()->add_lines(line);
  }
  const auto found = static_cast<size_t>(request.lines().lines_size());
  if (found == 0) return absl::InvalidArgumentError(absl::StrCat(options.data, ": no lines"));
  for (size_t i = found; i < options.candidates; ++i)
    request.mutable_lines()->add_lines(request.lines().lines(i % found));
  return request;
}

absl::Status MeasureRequests(const Options& options, ParameterSource* source) {
  LODESTONE_ASSIGN_OR_RETURN(const v1::PredictRequest request, RequestOf(options, source->description()->data()));
  LODESTONE_ASSIGN_OR_RETURN(const auto predictor, Predictor::Create(source->description()));
  LODESTONE_ASSIGN_OR_RETURN(
      const auto server,
      PredictionServer::Start(source, {.listen = "127.0.0.1:0", .http_listen = "", .credentials = {}}));
  LODESTONE_ASSIGN_OR_RETURN(const auto service, PredictionService::Create(source));
  const auto stub =
      v1::Predictor::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", server->port()), limits::kPredictBytesMax));
  std::printf("%zu candidates, %zu bytes\n", options.candidates, static_cast<size_t>(request.ByteSizeLong()));
  LODESTONE_RETURN_IF_ERROR(Time("Predict by gRPC", options.requests, [&] {
    grpc::ClientContext context;
    v1::PredictResponse response;
    return FromGrpc(stub->Predict(&context, request, &response));
  }));
  LODESTONE_RETURN_IF_ERROR(
      Time("the same without gRPC", options.requests, [&] { return service->Predict(request).status(); }));
  Products products(predictor->model(), options.candidates);
  return Time("its matrix products alone", options.requests, [&] { return products.Run(); });
}

// Reads `samples` samples of the file, over and over, and gives each batch to `visit`.
absl::Status ForEachBatch(const Options& options, const Predictor& predictor,
                          const std::function<absl::Status(worker::KeyedBatch*)>& visit) {
  worker::KeyedBatch keyed;
  std::vector<std::string> ids;
  for (size_t done = 0; done < options.samples;) {
    LODESTONE_ASSIGN_OR_RETURN(
        const auto stream, worker::SampleStream::Open(predictor.data(), predictor.description(), {options.data}, {}));
    do {
      LODESTONE_RETURN_IF_ERROR(stream->Next(2048, &keyed.batch, &ids));
      if (keyed.batch.size == 0) break;
      done += keyed.batch.size;
      LODESTONE_RETURN_IF_ERROR(visit(&keyed));
    } while (done < options.samples);
  }
  return absl::OkStatus();
}

absl::Status MeasureRates(const Options& options, ParameterSource* source) {
  LODESTONE_ASSIGN_OR_RETURN(const auto predictor, Predictor::Create(source->description()));
  const auto print = [&](const char* name, size_t samples, double seconds) {
    std::printf("%-34s %12.0f samples/s\n", name, static_cast<double>(samples) / seconds);
  };
  size_t samples = 0;
  std::vector<worker::KeyedBatch> batches;
  worker::KeyIndexer indexer;
  double began = Now();
  LODESTONE_RETURN_IF_ERROR(ForEachBatch(options, *predictor, [&](worker::KeyedBatch* keyed) {
    samples += keyed->batch.size;
    batches.push_back(*keyed);
    return absl::OkStatus();
  }));
  print("reading the file", samples, Now() - began);
  BatchParameters parameters;
  std::vector<float> predictions, scores;
  double gather = 0, compute = 0;
  for (worker::KeyedBatch& batch : batches) {
    began = Now();
    indexer.Index(&batch);
    LODESTONE_RETURN_IF_ERROR(source->Read(batch, &parameters));
    gather += Now() - began;
    began = Now();
    predictions.resize(batch.batch.size);
    scores.resize(batch.batch.size);
    predictor->Predict(batch, parameters, predictions.data(), scores.data());
    compute += Now() - began;
  }
  print("rows of samples in memory", samples, gather);
  print("arithmetic of samples in memory", samples, compute);
  PredictOptions predict;
  predict.model.model = options.model;
  predict.out = "/tmp/lodestone-serving-" + std::to_string(getpid()) + ".csv";
  std::ifstream file(options.data);
  const size_t lines = std::max<size_t>(1, std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  for (size_t done = 0; done < options.samples; done += lines) predict.files.push_back(options.data);
  began = Now();
  const absl::StatusOr<uint64_t> written = PredictFiles(predict);
  const double seconds = Now() - began;
  unlink(predict.out.c_str());
  LODESTONE_RETURN_IF_ERROR(written.status());
  print("psctl predict, with opening", *written, seconds);
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<ParameterSource> source,
                             OpenModel({.model = options.model, .follow = true}));
  LODESTONE_RETURN_IF_ERROR(MeasureRequests(options, source.get()));
  return MeasureRates(options, source.get());
}

}  // namespace
}  // namespace lodestone::psctl

int main(int argc, char** argv) {
  lodestone::kernels::cpu::RestartOnBetterCoreType(argv);  // As psctl.
  lodestone::psctl::Options options;
  CLI::App app("Measures predictions of a kept model, or of a running cluster's: requests, and psctl predict.");
  app.add_option("MODEL", options.model, "FILE.safetensors, or host:port of a ps")->required();
  app.add_option("--data", options.data, "Text in the format that the model was trained on")->required();
  app.add_option("--candidates", options.candidates, "Samples of a request")->capture_default_str();
  app.add_option("--requests", options.requests, "Requests, one after another")->capture_default_str();
  app.add_option("--samples", options.samples, "Samples that are predicted")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lodestone::psctl::Run(options);
  if (!status.ok()) std::fprintf(stderr, "serving: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

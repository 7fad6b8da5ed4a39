#include "tools/psctl/serving/prediction_service.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/machine_limits.h"
#include "common/telemetry/metrics.h"
#include "tools/psctl/model/predictor.h"
#include "worker/data/batch_builder.h"
#include "worker/data/sample_parser.h"
#include "worker/model/keyed_batch.h"

namespace lodestone::psctl {
namespace {

HistogramMetric predict_metric("lodestone_serve_predict_duration_seconds",
                               "From the reading of a request's samples until their predictions are there.");
CounterMetric predictions_metric("lodestone_serve_predictions_total", "Samples that were predicted.");
CounterMetric refused_metric("lodestone_serve_refused_total", "Requests that were refused or failed.");

absl::Status CheckCount(size_t samples) {
  if (samples == 0) return absl::InvalidArgumentError("the request has no samples");
  if (samples <= limits::kPredictSamplesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the request has ", samples, " samples; send at most ", limits::kPredictSamplesMax, " at a time"));
}

absl::Status AtSample(const absl::Status& status, size_t sample) {
  return Annotate(status, absl::StrCat("sample ", sample));
}

// A column's values of one kind, whose texts are made as they are asked for.
class ColumnTexts {
 public:
  explicit ColumnTexts(const v1::Columns::Column& column) : column_(&column) {}

  size_t size() const { return std::max(column_->texts_size(), column_->numbers_size()); }
  // Lives until the next call.
  absl::string_view At(size_t sample) {
    if (column_->texts_size() > 0) return column_->texts(static_cast<int>(sample));
    const double number = column_->numbers(static_cast<int>(sample));
    if (std::isnan(number)) return "";
    const auto end = std::to_chars(text_, text_ + sizeof(text_), number);
    return {text_, static_cast<size_t>(end.ptr - text_)};
  }

 private:
  const v1::Columns::Column* column_;
  char text_[32];
};

// INVALID_ARGUMENT unless all columns have the same number of values, of one kind.
absl::StatusOr<size_t> CountOf(const v1::Columns& columns) {
  if (columns.columns().empty()) return absl::InvalidArgumentError("the request has no columns");
  const size_t count = ColumnTexts(columns.columns(0)).size();
  for (const v1::Columns::Column& column : columns.columns()) {
    if (column.texts_size() > 0 && column.numbers_size() > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("column \"", column.name(), "\" has texts and numbers; give one of them"));
    }
    if (ColumnTexts(column).size() != count) {
      return absl::InvalidArgumentError(absl::StrCat("column \"", column.name(), "\" has ", ColumnTexts(column).size(),
                                                     " values, and \"", columns.columns(0).name(), "\" has ", count));
    }
  }
  return count;
}

}  // namespace

struct PredictionService::Desk {
  std::unique_ptr<Predictor> predictor;
  worker::KeyIndexer indexer;
  worker::KeyedBatch keyed;
  BatchParameters parameters;
  std::vector<float> predictions;
  std::vector<float> scores;
  // Made by the first request that needs it. That of csv lines is made again for another header.
  std::unique_ptr<worker::SampleParser> lines;
  std::unique_ptr<worker::SampleParser> images;
  std::string header;  // Of `lines`.

  const v1::DataDescription& data() const { return predictor->description()->data(); }
};

PredictionService::PredictionService(ParameterSource* source) : source_(source) {}
PredictionService::~PredictionService() = default;

absl::StatusOr<std::unique_ptr<PredictionService>> PredictionService::Create(ParameterSource* source) {
  std::unique_ptr<PredictionService> service(new PredictionService(source));
  MutexLock lock(&service->mu_);
  for (uint32_t i = 0; i < std::max(1u, MachineCores()); ++i) {
    auto desk = std::make_unique<Desk>();
    LODESTONE_ASSIGN_OR_RETURN(desk->predictor, Predictor::Create(source->description()));
    desk->indexer = worker::KeyIndexer(desk->predictor->model().plan().groups);
    service->free_.push_back(std::move(desk));
  }
  return service;
}

absl::StatusOr<std::unique_ptr<PredictionService::Desk>> PredictionService::TakeDesk() {
  MutexLock lock(&mu_);
  if (waiting_ >= limits::kPredictRequestsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(waiting_, " requests wait already; send this one later"));
  }
  ++waiting_;
  while (free_.empty()) freed_.Wait(&mu_);
  --waiting_;
  std::unique_ptr<Desk> desk = std::move(free_.back());
  free_.pop_back();
  return desk;
}

void PredictionService::GiveBack(std::unique_ptr<Desk> desk) {
  MutexLock lock(&mu_);
  free_.push_back(std::move(desk));
  freed_.NotifyOne();
}

absl::StatusOr<v1::PredictResponse> PredictionService::Predict(const v1::PredictRequest& request) {
  absl::StatusOr<std::unique_ptr<Desk>> desk = TakeDesk();
  if (!desk.ok()) {
    refused_metric.Add(1);
    return desk.status();
  }
  const int64_t started_ns = NowNs();
  absl::StatusOr<v1::PredictResponse> response = PredictAt(request, desk->get());
  GiveBack(*std::move(desk));
  if (response.ok()) {
    predict_metric.ObserveNs(NowNs() - started_ns);
    predictions_metric.Add(response->scores_size() / std::max(1, response->labels_size()));
  } else {
    refused_metric.Add(1);
  }
  return response;
}

absl::StatusOr<v1::PredictResponse> PredictionService::PredictAt(const v1::PredictRequest& request, Desk* desk) {
  LODESTONE_RETURN_IF_ERROR(ReadSamples(request, desk));
  const size_t samples = desk->keyed.batch.size;
  const v1::DataDescription& data = desk->data();
  if (request.probabilities() && data.classes_size() == 0) {
    return absl::InvalidArgumentError(
        data.labels_size() > 0
            ? "the scores of a model of several labels are their probabilities: leave `probabilities` out"
            : "the model predicts numbers, which have no probabilities");
  }
  if (request.probabilities() && samples * data.classes_size() > limits::kPredictionsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the probabilities of ", data.classes_size(), " classes of ",
                                                     samples, " samples are more than ", limits::kPredictionsMax,
                                                     "; send fewer samples at a time"));
  }
  const size_t scores = samples * desk->predictor->scores_per_sample();
  if (scores > limits::kPredictionsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the scores of ", data.labels_size(), " labels of ", samples,
                                                     " samples are more than ", limits::kPredictionsMax,
                                                     "; send fewer samples at a time"));
  }
  desk->indexer.Index(&desk->keyed);
  LODESTONE_RETURN_IF_ERROR(source_->Read(desk->keyed, &desk->parameters));
  desk->predictions.resize(samples);
  desk->scores.resize(scores);
  desk->predictor->Predict(desk->keyed, desk->parameters, desk->predictions.data(), desk->scores.data());

  v1::PredictResponse response;
  response.set_model(source_->name());
  response.set_version(desk->parameters.version);
  response.mutable_scores()->Add(desk->scores.begin(), desk->scores.end());
  for (const auto& label : data.labels()) response.add_labels(label.name());
  if (data.classes_size() == 0) return response;
  for (const auto& one : data.classes()) response.add_classes(one.name());
  const bool two_classes = desk->predictor->model().plan().outputs == 1;
  response.mutable_predicted()->Reserve(static_cast<int>(samples));
  for (const float prediction : desk->predictions) {
    response.add_predicted(two_classes ? prediction >= 0.5f : static_cast<uint32_t>(prediction));
  }
  if (!request.probabilities()) return response;
  std::vector<float> probabilities;
  desk->predictor->Probabilities(desk->scores, &probabilities);
  response.mutable_probabilities()->Add(probabilities.begin(), probabilities.end());
  return response;
}

absl::Status PredictionService::ReadSamples(const v1::PredictRequest& request, Desk* desk) {
  worker::ClearBatch(&desk->keyed.batch);
  switch (request.samples_case()) {
    case v1::PredictRequest::kLines:
      return ReadLines(request.lines(), desk);
    case v1::PredictRequest::kColumns:
      return ReadColumns(request.columns(), desk);
    case v1::PredictRequest::kImages:
      return ReadImages(request.images(), desk);
    case v1::PredictRequest::SAMPLES_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the request has no samples: neither lines nor columns nor images");
}

absl::Status PredictionService::ReadLines(const v1::Lines& lines, Desk* desk) {
  LODESTONE_RETURN_IF_ERROR(CheckCount(lines.lines_size()));
  const bool is_csv = desk->predictor->data().format() == v1::DataConfig::CSV;
  if (is_csv && desk->data().header() == lines.header().empty()) {
    return absl::InvalidArgumentError(
        lines.header().empty()
            ? "the model was trained on csv files with a header: set `header` to the line that names the columns"
            : "the model was trained on csv files without a header, so that `header` has no meaning");
  }
  const std::string& first = lines.header().empty() ? lines.lines(0) : lines.header();
  if (desk->lines == nullptr || (is_csv && first != desk->header)) {
    desk->lines.reset();
    LODESTONE_ASSIGN_OR_RETURN(
        desk->lines, worker::SampleParser::OfLines(desk->predictor->data(), desk->predictor->description(), first));
    desk->header = first;
  }
  for (int i = 0; i < lines.lines_size(); ++i) {
    LODESTONE_RETURN_IF_ERROR(AtSample(desk->lines->AddLine(lines.lines(i), &desk->keyed.batch), i));
  }
  return absl::OkStatus();
}

absl::Status PredictionService::ReadColumns(const v1::Columns& columns, Desk* desk) {
  LODESTONE_ASSIGN_OR_RETURN(const size_t count, CountOf(columns));
  LODESTONE_RETURN_IF_ERROR(CheckCount(count));
  std::vector<std::string> names;
  std::vector<ColumnTexts> texts;
  for (const v1::Columns::Column& column : columns.columns()) {
    names.push_back(column.name());
    texts.emplace_back(column);
  }
  LODESTONE_ASSIGN_OR_RETURN(
      const std::unique_ptr<worker::SampleParser> parser,
      worker::SampleParser::OfColumns(desk->predictor->data(), desk->predictor->description(), std::move(names)));
  std::vector<worker::CsvField> fields(texts.size());
  for (size_t i = 0; i < count; ++i) {
    for (size_t c = 0; c < texts.size(); ++c) fields[c].text = texts[c].At(i);
    LODESTONE_RETURN_IF_ERROR(AtSample(parser->AddFields(fields, &desk->keyed.batch), i));
  }
  return absl::OkStatus();
}

absl::Status PredictionService::ReadImages(const v1::Images& images, Desk* desk) {
  LODESTONE_RETURN_IF_ERROR(CheckCount(images.images_size()));
  if (desk->images == nullptr) {
    LODESTONE_ASSIGN_OR_RETURN(desk->images,
                               worker::SampleParser::OfImages(desk->predictor->data(), desk->predictor->description()));
  }
  for (int i = 0; i < images.images_size(); ++i) {
    LODESTONE_RETURN_IF_ERROR(AtSample(desk->images->AddImage(images.images(i), &desk->keyed.batch), i));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::psctl

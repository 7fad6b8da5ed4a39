#include "tools/psctl/verbs/predict.h"

#include <charconv>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/output_file.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/model/parameter_source.h"
#include "tools/psctl/model/predictor.h"
#include "tools/psctl/model/tower_vectors.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"
#include "worker/data/file_list.h"
#include "worker/data/sample_stream.h"
#include "worker/model/candidates.h"
#include "worker/model/model_description.h"

namespace lodestone::psctl {
namespace {

constexpr size_t kBatchSize = 2048;
constexpr size_t kWriteBytes = 1 << 20;

// What a batch of samples is said to be.
struct Predicted {
  const worker::Batch& batch;
  const std::vector<std::string>& ids;
  const std::vector<float>& predictions;
  const std::vector<float>& scores;
  double loss = 0;
};

// Predicts all samples of the files, batch by batch.
absl::Status ForEachBatch(const PredictOptions& options, bool labels, const TowerVectors* tower,
                          ParameterSource* source, Predictor* model,
                          const std::function<absl::Status(const Predicted&)>& visit) {
  LODESTONE_ASSIGN_OR_RETURN(std::vector<std::string> files, worker::ExpandFiles(options.files, "--data"));
  const auto& description = tower == nullptr ? model->description() : tower->description();
  LODESTONE_ASSIGN_OR_RETURN(
      const auto stream,
      worker::SampleStream::Open(worker::ConfigOf(*description).data(), description, std::move(files),
                                 {.labels = labels, .id_column = options.id_column}));
  // Three batches are under way: one is read, the parameters of the one before it are, and the one before that is
  // computed.
  struct Read {
    worker::Batch own;  // Of a tower's columns only.
    worker::KeyedBatch keyed;
    std::vector<std::string> ids;
    BatchParameters parameters;
  };
  Read reads[3];
  worker::KeyIndexer indexer(model->model().plan().groups);
  const auto parse = [&](Read* into) -> absl::Status {
    worker::Batch* const batch = &into->keyed.batch;
    if (tower != nullptr) {
      LODESTONE_RETURN_IF_ERROR(stream->Next(kBatchSize, &into->own, &into->ids));
      tower->Widen(into->own, batch);
      return absl::OkStatus();
    }
    LODESTONE_RETURN_IF_ERROR(stream->Next(kBatchSize, batch, &into->ids));
    if (!labels || !model->description()->has_two_tower()) return absl::OkStatus();
    return worker::FillCandidates(model->description(), batch);
  };
  const auto gather = [&](Read* into) -> absl::Status {
    if (into->keyed.batch.size == 0) return absl::OkStatus();
    indexer.Index(&into->keyed);
    return source->Read(into->keyed, &into->parameters);
  };
  LODESTONE_RETURN_IF_ERROR(parse(&reads[0]));
  std::vector<float> predictions, scores;
  std::future<absl::Status> gathering = std::async(std::launch::async, gather, &reads[0]);
  std::future<absl::Status> parsing = std::async(std::launch::async, parse, &reads[1]);
  for (size_t i = 0;; i = (i + 1) % 3) {
    LODESTONE_RETURN_IF_ERROR(gathering.get());
    const worker::KeyedBatch& keyed = reads[i].keyed;
    if (keyed.batch.size == 0) return absl::OkStatus();
    LODESTONE_RETURN_IF_ERROR(parsing.get());
    gathering = std::async(std::launch::async, gather, &reads[(i + 1) % 3]);
    parsing = std::async(std::launch::async, parse, &reads[(i + 2) % 3]);
    predictions.resize(keyed.batch.size);
    scores.resize(keyed.batch.size * model->scores_per_sample());
    const double loss = model->Predict(keyed, reads[i].parameters, predictions.data(), scores.data());
    LODESTONE_RETURN_IF_ERROR(visit({keyed.batch, reads[i].ids, predictions, scores, loss}));
  }
}

// A field of a CSV file.
std::string CsvText(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

// The shortest text that reads as the same float.
void AppendNumber(float number, std::string* text) {
  char digits[32];
  text->append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

// The lines of predict's output: predictions, or vectors of a tower.
class PredictionWriter {
 public:
  PredictionWriter(const v1::ModelDescription& model, const std::string& id_column, const TowerVectors* tower,
                   OutputFile* file)
      : two_classes_(model.outputs() == 1), tower_(tower), file_(file) {
    for (const auto& one : model.data().classes()) classes_.push_back(CsvText(one.name()));
    labels_ = model.data().labels_size();
    text_ = id_column.empty() ? "row" : CsvText(id_column);
    if (labels_ > 0) {
      for (const auto& label : model.data().labels()) absl::StrAppend(&text_, ",", CsvText(label.name()));
      text_ += '\n';
      return;
    }
    if (tower == nullptr) {
      absl::StrAppend(&text_, classes_.empty() ? ",value\n" : ",class,score\n");
      return;
    }
    for (size_t d = 0; d < tower->dim(); ++d) absl::StrAppend(&text_, ",v", d);
    text_ += '\n';
  }

  // The vectors of the batch that `model` predicted last.
  absl::Status AddVectors(const Predicted& predicted, const worker::Model& model) {
    const float* vector = tower_->Of(model);
    for (size_t i = 0; i < predicted.batch.size; ++i) {
      text_ += CsvText(predicted.ids[i]);
      for (size_t d = 0; d < tower_->dim(); ++d) {
        text_ += ',';
        AppendNumber(tower_->scale() * *vector++, &text_);
      }
      text_ += '\n';
    }
    written_ += predicted.batch.size;
    return text_.size() < kWriteBytes ? absl::OkStatus() : Flush();
  }

  absl::Status Add(const Predicted& predicted) {
    for (size_t i = 0; i < predicted.batch.size; ++i) {
      absl::StrAppend(&text_, CsvText(predicted.ids[i]));
      for (size_t k = 0; k < labels_; ++k) {
        text_ += ',';
        AppendNumber(predicted.scores[i * labels_ + k], &text_);
      }
      if (labels_ > 0) {
        text_ += '\n';
        continue;
      }
      text_ += ',';
      const float prediction = predicted.predictions[i];
      if (!classes_.empty()) {
        const size_t of_class = two_classes_ ? prediction >= 0.5f : static_cast<size_t>(prediction);
        absl::StrAppend(&text_, classes_[of_class], ",");
      }
      AppendNumber(predicted.scores[i], &text_);
      text_ += '\n';
    }
    written_ += predicted.batch.size;
    return text_.size() < kWriteBytes ? absl::OkStatus() : Flush();
  }
  absl::Status Flush() {
    LODESTONE_RETURN_IF_ERROR(file_->Write(text_));
    text_.clear();
    return absl::OkStatus();
  }
  uint64_t written() const { return written_; }

 private:
  const bool two_classes_;
  const TowerVectors* const tower_;  // Null: predictions.
  OutputFile* const file_;
  std::vector<std::string> classes_;
  size_t labels_ = 0;  // 0: there is one.
  std::string text_;
  uint64_t written_ = 0;
};

void AddCommon(CLI::App* command, const std::shared_ptr<PredictOptions>& options) {
  AddModel(command, &options->model);
  command
      ->add_option("--data", options->files,
                   "Files of the format that the model was trained on, or globs; may be given several times")
      ->required()
      ->type_name("FILE");
}

}  // namespace

absl::StatusOr<uint64_t> PredictFiles(const PredictOptions& options) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<ParameterSource> source, OpenModel(options.model));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Predictor> model, Predictor::Create(source->description()));
  std::optional<TowerVectors> vectors;
  if (!options.tower.empty()) {
    LODESTONE_ASSIGN_OR_RETURN(vectors, TowerVectors::Create(model->description(), options.tower));
  }
  const TowerVectors* const tower = vectors.has_value() ? &*vectors : nullptr;
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file,
                             OutputFile::Open(options.out == "-" ? "/dev/stdout" : options.out));
  PredictionWriter writer(*model->description(), options.id_column, tower, file.get());
  LODESTONE_RETURN_IF_ERROR(
      ForEachBatch(options, /*labels=*/false, tower, source.get(), model.get(), [&](const Predicted& predicted) {
        return tower == nullptr ? writer.Add(predicted) : writer.AddVectors(predicted, model->model());
      }));
  LODESTONE_RETURN_IF_ERROR(writer.Flush());
  LODESTONE_RETURN_IF_ERROR(file->Publish());
  return writer.written();
}

absl::StatusOr<worker::EvaluationMetrics::Result> EvaluateFiles(const PredictOptions& options) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<ParameterSource> source, OpenModel(options.model));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Predictor> model, Predictor::Create(source->description()));
  worker::EvaluationMetrics metrics = model->model().NewMetrics();
  LODESTONE_RETURN_IF_ERROR(ForEachBatch(
      options, /*labels=*/true, /*tower=*/nullptr, source.get(), model.get(), [&](const Predicted& predicted) {
        metrics.Add(predicted.batch.size, predicted.predictions.data(), predicted.batch.labels.data(), predicted.loss,
                    {.groups = predicted.batch.groups.empty() ? nullptr : predicted.batch.groups.data(),
                     .weights = predicted.batch.weights_or_null(),
                     .logits = model->model().logits(),
                     .classes = model->model().OutputsOf(predicted.batch.size),
                     .label_weights = predicted.batch.label_weights.data()});
        return absl::OkStatus();
      }));
  return metrics.Finish();
}

int RunPredict(const PredictOptions& options) {
  const absl::StatusOr<uint64_t> written = PredictFiles(options);
  if (!written.ok()) return Fail("predict", written.status());
  if (options.out == "-") return kExitDone;
  const nlohmann::ordered_json json = {{"out", options.out}, {"predictions", *written}};
  const std::string text = absl::StrCat(options.out, ": ", *written, " predictions\n");
  std::fputs((options.json ? IndentedJson(json) : text).c_str(), stdout);
  return kExitDone;
}

int RunEvaluate(const PredictOptions& options) {
  const absl::StatusOr<worker::EvaluationMetrics::Result> result = EvaluateFiles(options);
  if (!result.ok()) return Fail("evaluate", result.status());
  nlohmann::ordered_json json = {{"samples", result->samples}};
  std::string text = absl::StrCat("samples ", result->samples, "\n");
  if (result->weight != static_cast<double>(result->samples)) {
    json["weight"] = result->weight;
    absl::StrAppend(&text, "weight ", result->weight, "\n");
  }
  for (const worker::NamedMetric& metric : worker::MetricsOf(*result)) {
    json[metric.name] = metric.value;
    absl::StrAppend(&text, metric.name, " ", metric.value, "\n");
  }
  std::fputs((options.json ? IndentedJson(json) : text).c_str(), stdout);
  return kExitDone;
}

const Verb kPredictVerb = {
    "predict", "Writes what a trained model says of the samples in files",
    "  psctl predict model.safetensors --data new.csv --out scores.csv --id customer\n"
    "  psctl predict model.safetensors --data items.csv --tower item --id movie --out vectors.csv\n"
    "  psctl predict 10.0.0.1:7000 --data new.csv --out scores.csv        with what a running cluster has learned\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<PredictOptions>();
      AddCommon(command, options);
      command
          ->add_option("--out", options->out,
                       "CSV file of row,class,score or row,value, or of a score for each of several labels (with "
                       "--tower row,v0,v1,...); - is standard output")
          ->required()
          ->type_name("FILE");
      command->add_option("--id", options->id_column,
                          "The column of CSV or Parquet data that names each sample, instead of its row");
      command
          ->add_option(
              "--tower", options->tower,
              "Of a model of type twotower: instead of predictions the vectors that this tower, user or item, makes of "
              "its columns; the dot product of a user's and an item's is their score")
          ->type_name("TOWER");
      AddJson(command, &options->json, "Prints the file's name and the number of predictions as JSON");
      return [options] { return RunPredict(*options); };
    }};

const Verb kEvaluateVerb = {"evaluate", "Computes the metrics of a trained model on files with labels",
                            "  psctl evaluate model.safetensors --data test.csv\n", [](CLI::App* command) -> Verb::Run {
                              const auto options = std::make_shared<PredictOptions>();
                              AddCommon(command, options);
                              AddJson(command, &options->json, "Prints the metrics as JSON");
                              return [options] { return RunEvaluate(*options); };
                            }};

}  // namespace lodestone::psctl

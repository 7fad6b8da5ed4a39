#include "tools/psctl/serving/prediction_json.h"

#include <charconv>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace lodestone::psctl {
namespace {

using Json = nlohmann::json;

// Columns times samples: absent values take memory, and no bytes of the request.
constexpr size_t kValuesMax = limits::kPredictBytesMax / 8;

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

std::string Quote(const std::string& text) {
  return Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

void AppendNumber(float number, std::string* to) {
  if (!std::isfinite(number)) {
    *to += "null";
    return;
  }
  char text[32];
  to->append(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

// A value as a csv file would have it; false if it is none.
bool TextOf(const Json& value, std::string* text) {
  char digits[32];
  switch (value.type()) {
    case Json::value_t::null:
      text->clear();
      return true;
    case Json::value_t::string:
      *text = value.get_ref<const std::string&>();
      return true;
    case Json::value_t::number_integer:
      *text = absl::StrCat(value.get<int64_t>());
      return true;
    case Json::value_t::number_unsigned:
      *text = absl::StrCat(value.get<uint64_t>());
      return true;
    case Json::value_t::number_float:
      text->assign(digits, std::to_chars(digits, digits + sizeof(digits), value.get<double>()).ptr);
      return true;
    default:
      return false;
  }
}

absl::Status ReadColumns(const Json& samples, v1::Columns* columns) {
  std::map<std::string, v1::Columns::Column*> by_name;
  std::string text;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].is_object()) return Wrong(absl::StrCat("sample ", i, " is no object of columns and values"));
    for (const auto& [name, value] : samples[i].items()) {
      v1::Columns::Column*& column = by_name[name];
      if (column == nullptr) {
        column = columns->add_columns();
        column->set_name(name);
        if (by_name.size() * samples.size() > kValuesMax) {
          return absl::ResourceExhaustedError(
              absl::StrCat("columns times samples are more than ", kValuesMax, "; send fewer samples at a time"));
        }
        for (size_t s = 0; s < samples.size(); ++s) column->add_texts();
      }
      if (!TextOf(value, &text)) {
        return Wrong(absl::StrCat("sample ", i, ": column \"", name, "\" is neither a text nor a number nor null"));
      }
      *column->mutable_texts(static_cast<int>(i)) = text;
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLines(const Json& lines, v1::Lines* out) {
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].is_string()) return Wrong(absl::StrCat("line ", i, " is no text"));
    out->add_lines(lines[i].get_ref<const std::string&>());
  }
  return absl::OkStatus();
}

absl::Status ReadImages(const Json& images, v1::Images* out) {
  for (size_t i = 0; i < images.size(); ++i) {
    if (!images[i].is_array()) return Wrong(absl::StrCat("image ", i, " is no list of pixels"));
    std::string& pixels = *out->add_images();
    pixels.reserve(images[i].size());
    for (const Json& pixel : images[i]) {
      if (!pixel.is_number_unsigned() || pixel.get<uint64_t>() > 255) {
        return Wrong(absl::StrCat("image ", i, ": pixel ", pixels.size(), " is no whole number of 0 to 255"));
      }
      pixels.push_back(static_cast<char>(pixel.get<uint64_t>()));
    }
  }
  return absl::OkStatus();
}

// What one member of the object says.
absl::Status ReadMember(const std::string& name, const Json& value, v1::PredictRequest* request) {
  if (name == "probabilities") {
    if (!value.is_boolean()) return Wrong("`probabilities` is neither true nor false");
    request->set_probabilities(value.get<bool>());
    return absl::OkStatus();
  }
  if (name == "header") {
    if (!value.is_string()) return Wrong("`header` is no text");
    request->mutable_lines()->set_header(value.get<std::string>());
    return absl::OkStatus();
  }
  if (name != "samples" && name != "lines" && name != "images") {
    return Wrong(absl::StrCat("there is no `", name,
                              "`; a request has samples, lines and header, or images, and may have probabilities"));
  }
  if (!value.is_array()) return Wrong(absl::StrCat("`", name, "` is no list"));
  if (value.size() > limits::kPredictSamplesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("`", name, "` has ", value.size(), " samples; send at most ",
                                                     limits::kPredictSamplesMax, " at a time"));
  }
  if (name == "samples") return ReadColumns(value, request->mutable_columns());
  if (name == "lines") return ReadLines(value, request->mutable_lines());
  return ReadImages(value, request->mutable_images());
}

}  // namespace

absl::StatusOr<v1::PredictRequest> PredictRequestOf(absl::string_view json) {
  const Json parsed = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return Wrong("the body is no JSON");
  if (!parsed.is_object()) return Wrong("the body is no JSON object");
  if (parsed.contains("samples") + parsed.contains("lines") + parsed.contains("images") != 1) {
    return Wrong("give one of `samples`, `lines` and `images`");
  }
  if (parsed.contains("header") && !parsed.contains("lines")) return Wrong("`header` is for `lines`");
  v1::PredictRequest request;
  for (const auto& [name, value] : parsed.items()) LODESTONE_RETURN_IF_ERROR(ReadMember(name, value, &request));
  return request;
}

std::string JsonOf(const v1::PredictResponse& response) {
  std::vector<std::string> classes;
  for (const std::string& name : response.classes()) classes.push_back(Quote(name));
  std::string json = absl::StrCat("{\"model\": ", Quote(response.model()), ", \"version\": ", response.version());
  for (size_t c = 0; c < classes.size(); ++c) absl::StrAppend(&json, c == 0 ? ", \"classes\": [" : ", ", classes[c]);
  if (!classes.empty()) json += "]";
  const int labels = response.labels_size();
  for (int k = 0; k < labels; ++k) absl::StrAppend(&json, k == 0 ? ", \"labels\": [" : ", ", Quote(response.labels(k)));
  if (labels > 0) json += "]";
  json += ", \"predictions\": [";
  for (int i = 0; i < response.scores_size(); ++i) {
    if (i > 0) json += ", ";
    if (labels > 0) {
      json += i % labels == 0 ? "{\"scores\": [" : "";
      AppendNumber(response.scores(i), &json);
      json += i % labels == labels - 1 ? "]}" : "";
      continue;
    }
    json += "{";
    if (!classes.empty()) absl::StrAppend(&json, "\"class\": ", classes[response.predicted(i)], ", ");
    json += classes.empty() ? "\"value\": " : "\"score\": ";
    AppendNumber(response.scores(i), &json);
    for (size_t c = 0; response.probabilities_size() > 0 && c < classes.size(); ++c) {
      json += c == 0 ? ", \"probabilities\": [" : ", ";
      AppendNumber(response.probabilities(static_cast<int>(i * classes.size() + c)), &json);
    }
    json += response.probabilities_size() > 0 ? "]}" : "}";
  }
  return json + "]}\n";
}

std::string JsonOf(const absl::Status& error) {
  return absl::StrCat("{\"error\": ", Quote(std::string(error.message())), "}\n");
}

int HttpCodeOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return 400;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace lodestone::psctl

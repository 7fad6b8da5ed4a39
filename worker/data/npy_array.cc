#include "worker/data/npy_array.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "worker/data/line_parser.h"
#include "worker/data/npy_header.h"

namespace lodestone::worker {
namespace {

using Type = NpyArray::Type;

// NumPy's name of the type in headers, that in programs, and bytes of an element.
struct TypeNames {
  Type type;
  absl::string_view code;
  absl::string_view name;
  uint64_t bytes;
};
constexpr TypeNames kTypes[] = {
    {Type::kFloat32, "<f4", "float32", 4}, {Type::kInt32, "<i4", "int32", 4}, {Type::kInt64, "<i8", "int64", 8}};

const TypeNames& NamesOf(Type type) { return kTypes[static_cast<size_t>(type)]; }

// The wanted types, as programs call them.
std::string TypesText(const NpyArray::Wanted& wanted) {
  return absl::StrJoin(wanted.types, " or ",
                       [](std::string* out, Type type) { absl::StrAppend(out, NamesOf(type).name); });
}

absl::StatusOr<Type> TypeOf(const NpyHeader& header, const NpyArray::Wanted& wanted) {
  for (const Type type : wanted.types) {
    if (header.type == NamesOf(type).code) return type;
  }
  const std::string write = absl::StrCat("; write it with astype(\"", NamesOf(wanted.types[0]).code, "\")");
  if (!header.type.empty() && header.type[0] == '>') {
    return absl::UnimplementedError(
        absl::StrCat("its numbers are big-endian (dtype ", Quoted(header.type), ")", write));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("its dtype is ", Quoted(header.type), " instead of ", TypesText(wanted), write));
}

std::string ShapeText(const std::vector<uint64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::Status CheckShape(const std::vector<uint64_t>& shape, const NpyArray::Wanted& wanted) {
  if (shape.size() == 2 && shape[1] == wanted.columns) return absl::OkStatus();
  if (shape.size() == 1 && wanted.or_one_dimension) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("its shape is ", ShapeText(shape), " instead of [N, ", wanted.columns,
                                                 "]", wanted.or_one_dimension ? " or [N]" : ""));
}

}  // namespace

absl::StatusOr<NpyArray> NpyArray::Open(const std::string& path, const Wanted& wanted) {
  NpyArray array;
  LODESTONE_ASSIGN_OR_RETURN(array.file_, RandomFile::Open(path));
  const auto open = [&]() -> absl::Status {
    std::string bytes;
    const uint64_t file_bytes = array.file_->bytes();
    LODESTONE_RETURN_IF_ERROR(array.file_->Read(0, std::min<uint64_t>(kNpyPrefixBytesMax, file_bytes), &bytes));
    LODESTONE_ASSIGN_OR_RETURN(const NpyDictionary dictionary, FindNpyDictionary(bytes));
    if (dictionary.bytes > file_bytes - dictionary.offset) {
      return absl::DataLossError(absl::StrCat("byte ", dictionary.offset, ": its header of ", dictionary.bytes,
                                              " bytes goes beyond the end of the file at byte ", file_bytes));
    }
    LODESTONE_RETURN_IF_ERROR(array.file_->Read(dictionary.offset, dictionary.bytes, &bytes));
    LODESTONE_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyDictionary(bytes, dictionary.offset));
    const std::string at_header = absl::StrCat("byte ", dictionary.offset);
    const absl::StatusOr<Type> type = TypeOf(header, wanted);
    if (!type.ok()) return Annotate(type.status(), at_header);
    LODESTONE_RETURN_IF_ERROR(Annotate(CheckShape(header.shape, wanted), at_header));
    if (header.fortran_order) {
      return absl::UnimplementedError(
          absl::StrCat(at_header, ": it lies column by column (fortran_order); write numpy.ascontiguousarray of it"));
    }
    array.type_ = *type;
    array.element_bytes_ = NamesOf(*type).bytes;
    array.row_bytes_ = wanted.columns * array.element_bytes_;
    array.offset_ = dictionary.offset + dictionary.bytes;
    array.rows_ = header.shape[0];
    const uint64_t have = file_bytes - array.offset_;
    if (have / array.row_bytes_ == array.rows_ && have % array.row_bytes_ == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("byte ", array.offset_, ": behind the header are ", have,
                                            " bytes instead of ", array.rows_, " rows of ", array.row_bytes_,
                                            ": the file was cut off, or more was written behind it"));
  }();
  if (!open.ok()) return Annotate(open, path);
  return array;
}

}  // namespace lodestone::worker

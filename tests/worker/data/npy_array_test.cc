#include "worker/data/npy_array.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/worker/data/npy_files.h"

namespace lodestone::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using NpyType = NpyArray::Type;

constexpr uint64_t kNpyColumns = 3;

absl::StatusOr<NpyArray> OpenNpyBytes(const std::string& bytes) {
  return NpyArray::Open(
      WriteFile("array.npy", bytes),
      {.types = {NpyType::kFloat32, NpyType::kInt64}, .columns = kNpyColumns, .or_one_dimension = false});
}

std::string NpyErrorOf(const std::string& bytes) {
  const auto array = OpenNpyBytes(bytes);
  EXPECT_FALSE(array.ok()) << "it was read";
  return std::string(array.status().message());
}

// The error of a file with this dictionary and two rows of floats.
std::string NpyErrorOfHeader(const std::string& dictionary) {
  return NpyErrorOf(NpyBytes(dictionary, std::string(24, 'x')));
}

constexpr char kNpyHeader[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

TEST(NpyArray, ReadsTheRowsThatNumPyWrote) {
  for (const char* name : {"day_0_dense.npy", "day_1_dense.npy"}) {
    const auto array = NpyArray::Open(GivenNpy(name), {.types = {NpyType::kFloat32}, .columns = 13});
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->rows(), 40u);
    EXPECT_EQ(array->row_bytes(), 52u);
    EXPECT_EQ(array->ByteOf(2, 1), 128u + 2 * 52 + 4);
    std::string bytes;
    ASSERT_TRUE(array->Read(1, 2, &bytes).ok());
    ASSERT_EQ(bytes.size(), 104u);
    float first = 0;
    std::memcpy(&first, bytes.data(), sizeof(first));
    EXPECT_EQ(first, 4.97673368f);
  }
}

TEST(NpyArray, ReadsEveryVersionAndWhatOtherWritersCallTheSame) {
  const std::string data(24, 'x');
  for (const uint8_t major : {1, 2, 3}) EXPECT_TRUE(OpenNpyBytes(NpyBytes(kNpyHeader, data, major)).ok()) << int{major};
  for (const char* dictionary : {"{'shape':(2,3),'descr':\"<f4\",'fortran_order':False}",
                                 " { 'fortran_order' : False , 'shape' : ( 2L , 3L , ) , 'descr' : '<f4' , } "}) {
    EXPECT_TRUE(OpenNpyBytes(NpyBytes(dictionary, data)).ok()) << dictionary;
  }
  const auto none = OpenNpyBytes(NpyBytes("{'descr': '<i8', 'fortran_order': False, 'shape': (0, 3), }", ""));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->rows(), 0u);
  EXPECT_EQ(none->type(), NpyType::kInt64);
}

TEST(NpyArray, AHeaderThatIsNoneIsNamedWithItsByte) {
  EXPECT_THAT(NpyErrorOf(""), AllOf(HasSubstr("array.npy: byte 0"), HasSubstr("no npy file")));
  EXPECT_THAT(NpyErrorOf("\x1f\x8b packed by gz"), HasSubstr("is it packed"));
  EXPECT_THAT(NpyErrorOf("\x93NUMPY"), HasSubstr("byte 6: the file ends"));
  EXPECT_THAT(NpyErrorOf(std::string("\x93NUMPY\x01\x00v", 9)), HasSubstr("byte 8: the file ends"));
  EXPECT_THAT(NpyErrorOf(NpyBytes(kNpyHeader, "", 4)), HasSubstr("byte 6: it is of npy's version 4.0"));
  std::string huge = NpyBytes(kNpyHeader, "", 2);
  std::memcpy(huge.data() + 8, "\xff\xff\xff\xff", 4);
  EXPECT_THAT(NpyErrorOf(huge), HasSubstr("byte 8: its header cannot have 4294967295 bytes"));
  EXPECT_THAT(NpyErrorOf(NpyBytes(kNpyHeader, "").substr(0, 40)),
              HasSubstr("byte 10: its header of 118 bytes goes beyond"));
  const std::pair<const char*, const char*> headers[] = {
      {"", "byte 64: the header is no dictionary"},
      {"['descr']", "byte 10: the header is no dictionary"},
      {"{}", "the header has no descr"},
      {"{'descr': '<f4', 'shape': (2, 3)}", "the header has no fortran_order"},
      {"{'descr': '<f4', 'fortran_order': False}", "the header has no shape"},
      {"{'descr': '<f4', 'descr': '<f4'}", "byte 27: the header has \"descr\" twice"},
      {"{'descr': '<f4', 'sort': 1}", "byte 27: the header has \"sort\""},
      {"{descr: '<f4'}", "byte 11: a key is no text"},
      {"{'descr", "a key is no plain text"},
      {"{'descr': '<f\\x34'}", "descr is no plain text"},
      {"{'descr' '<f4'}", "a key without a value"},
      {"{'descr': '<f4' 'shape': (2, 3)}", "the dictionary does not end"},
      {"{'descr': '<f4', 'fortran_order': 0}", "byte 44: fortran_order is neither True nor False"},
      {"{'shape': 6}", "byte 20: shape is no tuple"},
      {"{'shape': (2, -3)}", "shape is no tuple of a few sizes"},
      {"{'shape': (99999999999999999999, 3)}", "shape is no tuple of a few sizes"},
      {"{'shape': (2, 3", "shape does not end"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } {}", "there is more behind the dictionary"}};
  for (const auto& [header, error] : headers) EXPECT_THAT(NpyErrorOfHeader(header), HasSubstr(error)) << header;
}

TEST(NpyArray, AnArrayOfAnotherKindIsNamedWithWhatToWrite) {
  const auto error_of = [](const std::string& type, const std::string& order, const std::string& shape) {
    return NpyErrorOfHeader(
        absl::StrCat("{'descr': ", type, ", 'fortran_order': ", order, ", 'shape': ", shape, ", }"));
  };
  EXPECT_THAT(error_of("'<f8'", "False", "(2, 3)"),
              AllOf(HasSubstr("array.npy: byte 10: its dtype is \"<f8\" instead of float32 or int64"),
                    HasSubstr("astype(\"<f4\")")));
  EXPECT_THAT(error_of("'>f4'", "False", "(2, 3)"), HasSubstr("its numbers are big-endian (dtype \">f4\")"));
  EXPECT_THAT(error_of("'|O'", "False", "(2, 3)"), HasSubstr("dtype is \"|O\""));
  EXPECT_THAT(error_of("[('a', '<f4')]", "False", "(2, 3)"), HasSubstr("several fields each"));
  EXPECT_THAT(error_of("'<f4'", "True", "(2, 3)"), HasSubstr("ascontiguousarray"));
  EXPECT_THAT(error_of("'<f4'", "False", "(3, 2)"), HasSubstr("its shape is [3, 2] instead of [N, 3]"));
  for (const char* shape : {"()", "(6,)", "(2, 3, 1)"}) {
    EXPECT_THAT(error_of("'<f4'", "False", shape), HasSubstr("instead of [N, 3]")) << shape;
  }
}

TEST(NpyArray, AFileThatIsShorterOrLongerThanItsArrayIsRefused) {
  EXPECT_THAT(NpyErrorOf(NpyBytes(kNpyHeader, std::string(23, 'x'))),
              HasSubstr("byte 128: behind the header are 23 bytes instead of 2 rows of 12"));
  EXPECT_THAT(NpyErrorOf(NpyBytes(kNpyHeader, std::string(25, 'x'))), HasSubstr("25 bytes instead of 2 rows"));
  EXPECT_THAT(NpyErrorOf(NpyBytes(kNpyHeader, std::string(36, 'x'))), HasSubstr("36 bytes instead of 2 rows"));
  // 2^64 - 1 rows: a product of 64 bits would wrap.
  EXPECT_THAT(NpyErrorOfHeader("{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 3), }"),
              HasSubstr("instead of 18446744073709551615 rows"));
}

TEST(NpyArray, AFileThatIsNotThereIsNotFound) {
  EXPECT_TRUE(
      absl::IsNotFound(NpyArray::Open(TestPath("no.npy"), {.types = {NpyType::kInt32}, .columns = 1}).status()));
}

}  // namespace
}  // namespace lodestone::worker

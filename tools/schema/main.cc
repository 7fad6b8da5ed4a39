// Writes the JSON Schema of the configuration files to standard output.
#include <cstdio>
#include <fstream>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "tools/schema/schema.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: schema DESCRIPTOR_SET MESSAGE\n");
    return 2;
  }
  google::protobuf::FileDescriptorSet files;
  std::ifstream input(argv[1], std::ios::binary);
  if (!input || !files.ParseFromIstream(&input)) {
    std::fprintf(stderr, "schema: %s cannot be read as a FileDescriptorSet\n", argv[1]);
    return 1;
  }
  google::protobuf::DescriptorPool pool;
  for (const google::protobuf::FileDescriptorProto& file : files.file()) {
    if (pool.BuildFile(file) == nullptr) {
      std::fprintf(stderr, "schema: %s: cannot use %s\n", argv[1], file.name().c_str());
      return 1;
    }
  }
  const google::protobuf::Descriptor* root = pool.FindMessageTypeByName(argv[2]);
  if (root == nullptr) {
    std::fprintf(stderr, "schema: %s has no message %s\n", argv[1], argv[2]);
    return 1;
  }
  const std::string schema = lodestone::schema::JsonSchema(*root);
  return std::fwrite(schema.data(), 1, schema.size(), stdout) == schema.size() && std::fflush(stdout) == 0 ? 0 : 1;
}

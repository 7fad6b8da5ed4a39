// Whether this is a build with AddressSanitizer, LODESTONE_ASAN, and its names for memory that must not be touched.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define LODESTONE_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LODESTONE_ASAN
#endif
#endif

#ifdef LODESTONE_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#endif

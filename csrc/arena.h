// Blocks of a thread's scratch memory, handed out one behind the other.
#pragma once
#include "pool.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace maclaurin {

class Arena {
  public:
    explicit Arena(float* begin) : begin_(begin) {}

    // `count` floats on a cache line's boundary; null while sizes are only being summed.
    float* take(size_t count) {
        float* block = begin_ == nullptr ? nullptr : begin_ + used_;
        used_ += (count + LINE - 1) / LINE * LINE;
#if defined(__SANITIZE_ADDRESS__)
        // a fence behind every block, and old contents replaced by NaN, so that no block can borrow from another
        if (block != nullptr) {
            for (size_t i = 0; i < count; ++i) block[i] = __builtin_nanf("");
            ASAN_POISON_MEMORY_REGION(block + count, (begin_ + used_ + LINE - (block + count)) * sizeof(float));
        }
        used_ += LINE;
#endif
        return block;
    }
    size_t used() const { return used_; }

  private:
    static constexpr size_t LINE = 16;  // floats
    float* begin_;
    size_t used_ = 0;
};

// use(buffers) with buffers of the kind Buffers(arena, sizes), a struct that takes its blocks from the arena in its
// constructor: once to learn the size, once to get the memory. False where memory ran out.
template <class Buffers, class Sizes, class Use>
bool with_buffers(const Sizes& sizes, const Use& use) {
    Arena measure(nullptr);
    Buffers(measure, sizes);
    float* begin = scratch(measure.used());
    if (begin == nullptr) return false;
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(begin, measure.used() * sizeof(float));
#endif
    Arena arena(begin);
    const Buffers buffers(arena, sizes);
    use(buffers);
    return true;
}

}  // namespace maclaurin

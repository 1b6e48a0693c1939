// A small pool of threads. The caller works too.
#pragma once
#include <cstddef>
#include <cstdint>

namespace maclaurin {

using Task = void (*)(void* context, int64_t index);

// Runs task(context, 0 … count-1) on up to `threads` threads and returns when all are done. Where another call has the
// pool (two Python threads, or a task that calls this), or the system gives no threads, the caller does everything itself.
// Throws nothing.
void parallel_for(int64_t count, int threads, Task task, void* context);

// GOMP_parallel(function, data, threads, flags): runs function(data) in every thread of a team and waits for all of them.
using OpenmpParallel = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

// From now on tasks run in the threads of that OpenMP, instead of in a pool of our own; null goes back.
void use_openmp(OpenmpParallel parallel);

template <class Function>
void parallel_for(int64_t count, int threads, const Function& function) {
    const Task call = [](void* context, int64_t index) { (*static_cast<const Function*>(context))(index); };
    parallel_for(count, threads, call, const_cast<Function*>(&function));
}

// `count` floats on a cache line's boundary, kept by this thread for its next task; null where memory ran out.
float* scratch(size_t count);

// Asks for large pages under memory that is about to be written for the first time: a fresh state of a layer has thousands
// of small ones, and to get them from the system one by one takes longer than to fill them.
void prefer_large_pages(void* data, size_t bytes);

}  // namespace maclaurin

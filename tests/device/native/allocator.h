// The devices' memory, which is the host's, kept and counted as a caching allocator does.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace bench {

void set_capacity(size_t bytes);  // of each device
c10::DeviceAllocator* allocator();

}  // namespace bench

// A disk that fails when a test says so: SQLite's file system layer with a hook before each write
// and sync. Without faults it writes through and syncs nothing, which keeps the tests quick.
#pragma once

#include <sqlite3.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>

namespace coordd {

// One at a time in a process; registered from construction to destruction.
class FaultVfs {
 public:
  // Asked before each; what it returns instead of SQLITE_OK is what SQLite gets.
  std::function<int(const std::string& file)> on_write;
  std::function<int(const std::string& file)> on_sync;
  int syncs = 0;

  FaultVfs() : real_(sqlite3_vfs_find(nullptr)), vfs_(*real_) {
    current_ = this;
    vfs_.zName = kName;
    vfs_.szOsFile = static_cast<int>(sizeof(File)) + real_->szOsFile;
    vfs_.xOpen = &FaultVfs::Open;
    sqlite3_vfs_register(&vfs_, 0);
  }
  ~FaultVfs() {
    sqlite3_vfs_unregister(&vfs_);
    current_ = nullptr;
  }
  FaultVfs(const FaultVfs&) = delete;
  FaultVfs& operator=(const FaultVfs&) = delete;

  static constexpr char kName[] = "coordd-fault";

 private:
  struct File {
    sqlite3_file base;
    sqlite3_io_methods methods;
    const char* path;
    sqlite3_file* real;
  };
  static File* Of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }

  static int Open(sqlite3_vfs*, const char* path, sqlite3_file* file, int flags, int* out) {
    File* own = Of(file);
    own->base.pMethods = nullptr;
    own->path = path == nullptr ? "" : path;
    own->real = reinterpret_cast<sqlite3_file*>(own + 1);
    std::memset(own->real, 0, static_cast<size_t>(current_->real_->szOsFile));
    const int code = current_->real_->xOpen(current_->real_, path, own->real, flags, out);
    if (own->real->pMethods == nullptr) return code;
    sqlite3_io_methods& m = own->methods;
    m = {};
    m.iVersion = 1;  // no shared memory: the database is opened exclusively
    m.xClose = [](sqlite3_file* f) { return Of(f)->real->pMethods->xClose(Of(f)->real); };
    m.xRead = [](sqlite3_file* f, void* to, int count, sqlite3_int64 at) {
      return Of(f)->real->pMethods->xRead(Of(f)->real, to, count, at);
    };
    m.xWrite = [](sqlite3_file* f, const void* from, int count, sqlite3_int64 at) {
      const int fault = current_->on_write ? current_->on_write(Of(f)->path) : SQLITE_OK;
      if (fault != SQLITE_OK) return fault;
      return Of(f)->real->pMethods->xWrite(Of(f)->real, from, count, at);
    };
    m.xTruncate = [](sqlite3_file* f, sqlite3_int64 size) {
      return Of(f)->real->pMethods->xTruncate(Of(f)->real, size);
    };
    m.xSync = [](sqlite3_file* f, int) {
      ++current_->syncs;
      return current_->on_sync ? current_->on_sync(Of(f)->path) : SQLITE_OK;
    };
    m.xFileSize = [](sqlite3_file* f, sqlite3_int64* size) {
      return Of(f)->real->pMethods->xFileSize(Of(f)->real, size);
    };
    m.xLock = [](sqlite3_file* f, int level) {
      return Of(f)->real->pMethods->xLock(Of(f)->real, level);
    };
    m.xUnlock = [](sqlite3_file* f, int level) {
      return Of(f)->real->pMethods->xUnlock(Of(f)->real, level);
    };
    m.xCheckReservedLock = [](sqlite3_file* f, int* out_held) {
      return Of(f)->real->pMethods->xCheckReservedLock(Of(f)->real, out_held);
    };
    m.xFileControl = [](sqlite3_file* f, int what, void* argument) {
      return Of(f)->real->pMethods->xFileControl(Of(f)->real, what, argument);
    };
    m.xSectorSize = [](sqlite3_file* f) { return Of(f)->real->pMethods->xSectorSize(Of(f)->real); };
    m.xDeviceCharacteristics = [](sqlite3_file* f) {
      return Of(f)->real->pMethods->xDeviceCharacteristics(Of(f)->real);
    };
    own->base.pMethods = &own->methods;
    return code;
  }

  static inline FaultVfs* current_ = nullptr;
  sqlite3_vfs* const real_;
  sqlite3_vfs vfs_;
};

}  // namespace coordd

#include "worker/program/selftest_cases.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr DataType kDataTypes[] = {
    DataType::kUint8,   DataType::kInt8,         DataType::kUint16,    DataType::kInt16,
    DataType::kUint32,  DataType::kInt32,        DataType::kUint64,    DataType::kInt64,
    DataType::kFloat16, DataType::kBfloat16,     DataType::kFloat32,   DataType::kFloat64,
    DataType::kBool,    DataType::kFloat8E4m3fn, DataType::kFloat8E5m2};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

// Collects cases and gives every tensor a name and a seed of its own.
class CaseList {
 public:
  CaseList(int32_t rank, int32_t size, std::string prefix = "selftest/")
      : rank_(rank), world_size_(size), prefix_(std::move(prefix)) {
    In(0, {});
  }

  // What follows is for a process set; 0: all ranks.
  void In(int32_t set, std::vector<int32_t> members) {
    set_ = set;
    members_ = std::move(members);
    if (members_.empty())
      for (int32_t r = 0; r < world_size_; ++r) members_.push_back(r);
    index_ =
        static_cast<size_t>(std::find(members_.begin(), members_.end(), rank_) - members_.begin());
  }
  // In what follows so many of the first members have joined.
  void SetJoined(int32_t joined) { joined_ = joined; }

  SelftestTensor Tensor(CollectiveKind kind, DataType dtype, std::vector<int64_t> shape) {
    SelftestTensor tensor;
    tensor.seed = ++tensors_;
    tensor.spec.name = absl::StrCat(prefix_, tensors_, "/", Name(kind), "/", Name(dtype));
    tensor.spec.kind = kind;
    tensor.spec.dtype = dtype;
    tensor.spec.shape = std::move(shape);
    tensor.set = set_;
    tensor.members = members_;
    tensor.joined = joined_;
    return tensor;
  }
  SelftestTensor Reduction(CollectiveKind kind, DataType dtype, ReduceOp op,
                           std::vector<int64_t> shape) {
    SelftestTensor tensor = Tensor(kind, dtype, std::move(shape));
    tensor.spec.op = op;
    absl::StrAppend(&tensor.spec.name, "/", Name(op));
    return tensor;
  }
  // Another root each time.
  SelftestTensor Rooted(SelftestTensor tensor) {
    tensor.spec.root_rank = members_[tensors_ % members_.size()];
    return tensor;
  }
  // Member m gives `rows[m]` rows of `columns` elements.
  SelftestTensor Ragged(CollectiveKind kind, DataType dtype, std::vector<int64_t> rows,
                        int64_t columns) {
    const int64_t own = index_ < rows.size() ? rows[index_] : 0;
    SelftestTensor tensor = Tensor(kind, dtype, {own, columns});
    tensor.rows = std::move(rows);
    tensor.own_output = false;
    return tensor;
  }
  SelftestTensor Gather(CollectiveKind kind, DataType dtype, int64_t columns) {
    std::vector<int64_t> rows;
    for (int32_t m = 0; m < size(); ++m) rows.push_back((m * 2 + 1) % 4);
    return Ragged(kind, dtype, std::move(rows), columns);
  }
  SelftestTensor Allgather(DataType dtype, int64_t columns) {
    return Gather(CollectiveKind::kAllgather, dtype, columns);
  }
  SelftestTensor UnevenAlltoall(DataType dtype, int64_t columns) {
    std::vector<std::vector<int64_t>> splits(members_.size());
    std::vector<int64_t> rows;
    for (int32_t m = 0; m < size(); ++m) {
      rows.push_back(0);
      for (int32_t d = 0; d < size(); ++d) {
        splits[static_cast<size_t>(m)].push_back((m + 2 * d) % 3);
        rows.back() += (m + 2 * d) % 3;
      }
    }
    SelftestTensor tensor = Ragged(CollectiveKind::kAlltoall, dtype, std::move(rows), columns);
    tensor.splits = std::move(splits);
    return tensor;
  }
  SelftestTensor EvenAlltoall(DataType dtype, int64_t columns) {
    return Ragged(CollectiveKind::kAlltoall, dtype,
                  std::vector<int64_t>(members_.size(), 2 * size()), columns);
  }
  // From one rank to another; the others have nothing to do with it.
  SelftestTensor Message(int32_t from, int32_t to, DataType dtype, int64_t elements) {
    const bool sends = rank_ == from;
    SelftestTensor tensor = Tensor(CollectiveKind::kSend, dtype, {elements});
    if (!sends) tensor.spec.kind = CollectiveKind::kReceive;
    tensor.spec.peer_rank = sends ? to : from;
    tensor.members = {from, to};
    return tensor;
  }

  void Add(std::string row, std::vector<SelftestTensor> tensors, bool grouped = false,
           bool shuffled = false) {
    const std::string name = absl::StrCat("case ", cases_.size() + 1);
    cases_.push_back({std::move(row), name, std::move(tensors), grouped, shuffled});
  }
  void AddAlone(SelftestTensor tensor) {
    Add(absl::StrCat(Name(tensor.spec.kind), " ", Name(tensor.spec.dtype)), {std::move(tensor)});
  }

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  std::vector<SelftestCase> Take() { return std::move(cases_); }

 private:
  const int32_t rank_, world_size_;
  const std::string prefix_;
  int32_t set_ = 0, joined_ = 0;
  std::vector<int32_t> members_;
  size_t index_ = 0;  // of this rank among them; their number: it is none of them
  uint64_t tensors_ = 0;
  std::vector<SelftestCase> cases_;
};

bool Allowed(DataType dtype, ReduceOp op) {
  return dtype != DataType::kBool || op != ReduceOp::kAverage;
}

void AddReductions(CaseList& list, CollectiveKind kind, DataType dtype) {
  const int64_t ranks = list.size();
  for (ReduceOp op : kOps) {
    if (!Allowed(dtype, op)) continue;
    if (kind == CollectiveKind::kAllreduce) {
      for (int64_t elements : {0, 1, 7, 1000})
        list.AddAlone(list.Reduction(kind, dtype, op, {elements}));
    } else if (kind == CollectiveKind::kReduce) {
      for (int64_t elements : {0, 7, 5000})
        list.AddAlone(list.Rooted(list.Reduction(kind, dtype, op, {elements})));
    } else {
      // Fewer rows than ranks, and rows that do not divide.
      for (int64_t rows : {int64_t{0}, int64_t{1}, 2 * ranks + 1})
        list.AddAlone(list.Reduction(kind, dtype, op, {rows, 33}));
    }
  }
}

void AddEveryKindAndType(CaseList& list) {
  for (DataType dtype : kDataTypes) AddReductions(list, CollectiveKind::kAllreduce, dtype);
  for (DataType dtype : kDataTypes) AddReductions(list, CollectiveKind::kReducescatter, dtype);
  for (DataType dtype : kDataTypes) {
    for (int32_t root = 0; root < list.size(); ++root) {
      SelftestTensor tensor = list.Tensor(CollectiveKind::kBroadcast, dtype, {5, 41});
      tensor.spec.root_rank = root;
      tensor.in_place = root % 2 == 1;
      list.AddAlone(std::move(tensor));
    }
  }
  for (DataType dtype : kDataTypes)
    for (int64_t columns : {0, 1, 37}) list.AddAlone(list.Allgather(dtype, columns));
  for (DataType dtype : kDataTypes) {
    for (int64_t columns : {0, 1, 37}) {
      list.AddAlone(list.UnevenAlltoall(dtype, columns));
      list.AddAlone(list.EvenAlltoall(dtype, columns));
    }
  }
  for (DataType dtype : kDataTypes) AddReductions(list, CollectiveKind::kReduce, dtype);
  for (DataType dtype : kDataTypes)
    for (int64_t columns : {0, 1, 37})
      list.AddAlone(list.Rooted(list.Gather(CollectiveKind::kGather, dtype, columns)));
  for (DataType dtype : kDataTypes) {
    std::vector<SelftestTensor> messages;
    for (int32_t from = 0; from < list.size(); ++from)
      for (int32_t to = 0; to < list.size(); ++to)
        if (from != to) messages.push_back(list.Message(from, to, dtype, 3 * (from + to)));
    if (!messages.empty())
      list.Add(absl::StrCat("send and receive ", Name(dtype)), std::move(messages));
  }
  list.Add("barrier", {list.Tensor(CollectiveKind::kBarrier, DataType::kUint8, {})});
}

void AddSizesAndFactors(CaseList& list) {
  for (int64_t elements : {100003, 1 << 20}) {
    for (bool in_place : {false, true}) {
      SelftestTensor tensor = list.Reduction(CollectiveKind::kAllreduce, DataType::kFloat32,
                                             ReduceOp::kSum, {elements});
      tensor.in_place = in_place;
      list.Add("large tensors", {std::move(tensor)});
    }
  }
  for (CollectiveKind kind : {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter}) {
    for (DataType dtype : {DataType::kInt32, DataType::kFloat16, DataType::kBfloat16,
                           DataType::kFloat32, DataType::kFloat64}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
        std::vector<SelftestTensor> tensors;
        for (int i = 0; i < 3; ++i) {
          tensors.push_back(list.Reduction(kind, dtype, op, {2 * list.size() + i, 5}));
          tensors.back().spec.prescale_factor = 0.5;
          tensors.back().spec.postscale_factor = 4.0;
        }
        list.Add("scale factors", {tensors[0]});
        // Names of their own: the first travels alone, the other two fused.
        list.Add("scale factors", {tensors[1], tensors[2]}, /*grouped=*/true);
      }
    }
  }
}

std::vector<SelftestTensor> Mixture(CaseList& list, int count) {
  std::vector<SelftestTensor> tensors;
  for (int i = 0; i < count; ++i) {
    const DataType dtype = i % 3 == 0 ? DataType::kFloat32
                                      : kDataTypes[static_cast<size_t>(i) % std::size(kDataTypes)];
    switch (i % 8) {
      case 0:
      case 1:
      case 2:
        tensors.push_back(
            list.Reduction(CollectiveKind::kAllreduce, dtype, ReduceOp::kSum, {i * 17 % 100, 3}));
        tensors.back().in_place = i % 2 == 0;
        break;
      case 3:
        tensors.push_back(list.Allgather(DataType::kFloat32, 1 + i));
        break;
      case 4:
        tensors.push_back(list.Tensor(CollectiveKind::kBroadcast, DataType::kInt64, {1 + i}));
        tensors.back().spec.root_rank = i / 8 % list.size();
        break;
      case 5:
        tensors.push_back(list.Reduction(CollectiveKind::kReducescatter, DataType::kFloat32,
                                         ReduceOp::kAverage, {list.size() + i, 2}));
        tensors.back().own_output = i % 2 == 0;
        break;
      case 6:
        tensors.push_back(list.UnevenAlltoall(dtype, 1 + i % 5));
        break;
      case 7:
        tensors.push_back(list.Tensor(CollectiveKind::kBarrier, DataType::kUint8, {}));
        break;
    }
  }
  return tensors;
}

void AddCompany(CaseList& list) {
  for (int count : {8, 64, 400})
    list.Add("many at once, in another order on each rank", Mixture(list, count),
             /*grouped=*/false, /*shuffled=*/true);
  for (int count : {1, 16}) list.Add("groups", Mixture(list, count), /*grouped=*/true);
  std::vector<SelftestTensor> gathers, reductions;
  for (int i = 0; i < 6; ++i) {
    gathers.push_back(list.Allgather(DataType::kInt16, 1 + i));
    reductions.push_back(list.Reduction(CollectiveKind::kAllreduce, DataType::kBfloat16,
                                        ReduceOp::kAverage, {100 + i}));
  }
  list.Add("groups", std::move(gathers), /*grouped=*/true);
  list.Add("groups", std::move(reductions), /*grouped=*/true);
}

// Every kind, for what `list` is set to.
std::vector<SelftestTensor> EveryKind(CaseList& list, DataType dtype) {
  const ReduceOp op = dtype == DataType::kBool ? ReduceOp::kMax : ReduceOp::kAverage;
  std::vector<SelftestTensor> tensors;
  for (CollectiveKind kind : {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter})
    for (ReduceOp each : {op, ReduceOp::kProduct})
      tensors.push_back(list.Reduction(kind, dtype, each, {list.size() + 3, 5}));
  tensors.push_back(list.Rooted(list.Reduction(CollectiveKind::kReduce, dtype, op, {11})));
  tensors.push_back(list.Rooted(list.Gather(CollectiveKind::kGather, dtype, 3)));
  tensors.push_back(list.Rooted(list.Tensor(CollectiveKind::kBroadcast, dtype, {6})));
  tensors.push_back(list.Allgather(dtype, 4));
  tensors.push_back(list.UnevenAlltoall(dtype, 2));
  tensors.push_back(list.EvenAlltoall(dtype, 2));
  tensors.push_back(list.Tensor(CollectiveKind::kBarrier, DataType::kUint8, {}));
  return tensors;
}

void AddProcessSets(CaseList& list) {
  const std::vector<std::vector<int32_t>> sets = SelftestSets(list.size());
  for (DataType dtype : kDataTypes) {
    std::vector<SelftestTensor> tensors;
    for (size_t s = 0; s <= sets.size(); ++s) {
      list.In(static_cast<int32_t>(s), s == 0 ? std::vector<int32_t>() : sets[s - 1]);
      for (SelftestTensor& tensor : EveryKind(list, dtype)) tensors.push_back(std::move(tensor));
    }
    list.In(0, {});
    list.Add("process sets that overlap, at once", std::move(tensors), /*grouped=*/false,
             /*shuffled=*/true);
  }
}

}  // namespace

std::vector<SelftestCase> SelftestCases(int32_t rank, int32_t size) {
  CaseList list(rank, size);
  AddEveryKindAndType(list);
  AddSizesAndFactors(list);
  AddCompany(list);
  AddProcessSets(list);
  return list.Take();
}

std::vector<std::vector<int32_t>> SelftestSets(int32_t size) {
  std::vector<int32_t> even, all_but_first;
  for (int32_t r = 0; r < size; ++r) {
    if (r % 2 == 0) even.push_back(r);
    if (r > 0) all_but_first.push_back(r);
  }
  std::vector<std::vector<int32_t>> sets;
  for (const auto& set : {even, all_but_first, {size - 1}}) {
    const bool is_new = std::find(sets.begin(), sets.end(), set) == sets.end();
    if (!set.empty() && set.size() < static_cast<size_t>(size) && is_new) sets.push_back(set);
  }
  return sets;
}

std::vector<SelftestCase> SelftestJoinRounds(int32_t rank, int32_t size) {
  CaseList list(rank, size, "selftest/join/");
  for (int32_t round = 0; round < size; ++round) {
    list.SetJoined(round);
    std::vector<SelftestTensor> tensors;
    for (DataType dtype : kDataTypes) {
      for (ReduceOp op : kOps)
        if (Allowed(dtype, op))
          tensors.push_back(list.Reduction(CollectiveKind::kAllreduce, dtype, op, {7}));
      tensors.push_back(list.Allgather(dtype, 4));
    }
    for (SelftestTensor& tensor : EveryKind(list, DataType::kInt16)) {
      // A root that has joined has nothing to give, or to take.
      if (HasRoot(tensor.spec.kind)) tensor.spec.root_rank = size - 1;
      tensors.push_back(std::move(tensor));
    }
    list.Add("after ranks have joined", std::move(tensors), /*grouped=*/false, /*shuffled=*/true);
  }
  return list.Take();
}

}  // namespace coordd

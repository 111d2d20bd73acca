# PURE: what decides. No gRPC, no thread, no clock, no socket.
coordd_library(coordd_server_core BUSY PURE
  SOURCES admission.cc blame.cc connection_gate.cc coordinator_state.cc device_order.cc digest.cc drains.cc end_rule.cc fusion_planner.cc generation_plan.cc
          generation_resume.cc generation_schedules.cc
          generation_sets.cc generation_shared.cc generation_stalls.cc generation_state.cc http2_refusal.cc invariants.cc invariants_resume.cc invariants_sets.cc invariants_slots.cc
          job_describe.cc job_dismissal.cc job_durability.cc job_exits.cc
          job_membership.cc job_process_sets.cc job_record.cc job_reforming.cc job_resume.cc job_stacks.cc job_state.cc join_state.cc kv_state.cc lateness.cc member_list.cc node_members.cc
          process_exit.cc process_set_requests.cc process_sets.cc rank_set.cc readiness_bundles.cc readiness_queries.cc readiness_shared.cc
          readiness_table.cc reforming.cc rendezvous_state.cc repair_plan.cc resume_merge.cc resume_state.cc schedule_detector.cc schedule_table.cc slot_cache.cc
          server_options.cc tombstones.cc trace_state.cc validate_message.cc wake_rule.cc
  LIBS coordd_common coordd_proto absl::flat_hash_map absl::status absl::strings absl::time
  PRIVATE_LIBS OpenSSL::Crypto)

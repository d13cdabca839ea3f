# SPDX-License-Identifier: Apache-2.0
# Random traces: 10^5 events of each kind in every run, 10^6 among the soaks.
headrace_test(sim_engine sim hr_engine hr_base)
set_property(TEST sim_engine PROPERTY LABELS sim)
add_test(NAME sim_engine_long COMMAND sim_engine 1000000)
set_tests_properties(sim_engine_long PROPERTIES LABELS soak TIMEOUT 3600)

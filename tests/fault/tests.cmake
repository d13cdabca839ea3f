# SPDX-License-Identifier: Apache-2.0
# base
headrace_test(fault_base fault hr_base)
# engine
headrace_test(fault_engine fault hr_engine hr_vt_cpu hr_vt hr_base)

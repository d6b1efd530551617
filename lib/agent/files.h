/* SPDX-License-Identifier: BSD-3-Clause */
/* The files through which the ranks of a node and berth communicate, in dir, the agent's temporary
 * directory: BERTH_STOP_FILE, BERTH_END_TIME_FILE,
 * BERTH_REPORT, TORCHELASTIC_ERROR_FILE and the plan. */
#ifndef BERTH_AGENT_FILES_H
#define BERTH_AGENT_FILES_H

#include <jansson.h>

#include "agent/uplink.h"

/* Create the stop file with the word why in it. shared is the file that the user named, or NULL
 * for one in dir. An existing word stays, except that "failed" (nothing can be saved any longer)
 * replaces it. Errors are sent to uplink as a note. */
void agent_stop_file_write(const char *dir, const char *shared, const char *why,
			   struct agent_uplink *uplink);
/* Write the job's end time, in Unix seconds, to dir/end-time. An error is sent to uplink as a note.
 */
void agent_end_time_write(const char *dir, int64_t end_time, struct agent_uplink *uplink);
/* Return the JSON object that the program has written to BERTH_REPORT, as a new reference; NULL
 * if there is none. */
json_t *agent_report_read(const char *dir);
/* Return the lines of the traceback in the file in which PyTorch's @record describes the exception
 * that ended a rank, as a new reference, and remove the file; NULL if there is none. Source of the
 * format: record_exception in torch/distributed/elastic/multiprocessing/errors/error_handler.py,
 * PyTorch 2.15. */
json_t *agent_traceback_read(const char *dir, int local_rank);
/* Write the plan to dir/plan.json. */
int agent_plan_write(const char *dir, const json_t *plan, struct error *err);
/* Remove the stop file, the end time and the report of an earlier attempt from dir. */
void agent_files_remove(const char *dir);

#endif

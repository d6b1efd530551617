/* SPDX-License-Identifier: BSD-3-Clause */
/* The files through which the ranks of a node and berth communicate, in dir, the agent's temporary
 * directory: BERTH_STOP_FILE, BERTH_REPORT and the plan. */
#ifndef BERTH_AGENT_FILES_H
#define BERTH_AGENT_FILES_H

#include <jansson.h>

#include "agent/uplink.h"

/* Create the stop file with the word why in it. shared is the file that the user named, or NULL
 * for one in dir. An existing word stays, except that "failed" (nothing can be saved any longer)
 * replaces it. Errors are sent to uplink as a note. */
void agent_stop_file_write(const char *dir, const char *shared, const char *why,
			   struct agent_uplink *uplink);
/* Return the JSON object that the program has written to BERTH_REPORT, as a new reference; NULL
 * if there is none. */
json_t *agent_report_read(const char *dir);
/* Write the plan to dir/plan.json. */
int agent_plan_write(const char *dir, const json_t *plan, struct error *err);
/* Remove the stop file and the report of an earlier attempt from dir. */
void agent_files_remove(const char *dir);

#endif

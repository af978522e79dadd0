"""Samples of formats of clusters' logs, made from their documented columns, and 10 broken variants of each."""

from __future__ import annotations

import json
from typing import Any

Files = dict[str, str]
Breaks = dict[str, tuple[str, str, int, str]]

SACCT = """\
JobID|User|Account|State|Submit|Start|End|ElapsedRaw|AllocTRES|ReqTRES
7|ann|vision|COMPLETED|2024-03-30T10:00:00|2024-03-30T10:00:10|2024-03-30T10:01:50|100|billing=4,gres/gpu:v100=2,gres/gpu=2|gres/gpu=2
7.batch|||COMPLETED|2024-03-30T10:00:10|2024-03-30T10:00:10|2024-03-30T10:01:50|100|cpu=4|
8_1|bob|text|TIMEOUT|2024-03-30T10:00:05|2024-03-30T10:00:06|2024-03-30T11:00:06|3600|gres/gpu:a100-sxm4=1|gres/gpu=1
8_2|bob|text|FAILED|2024-03-30T10:00:05|2024-03-30T10:00:06|2024-03-30T10:00:36|30|gres/gpu=1|gres/gpu=1
8_[3-9]|bob|text|PENDING|2024-03-30T10:00:05|Unknown|Unknown|0||gres/gpu=1
9|ann|vision|NODE_FAIL|2024-03-30T10:00:20|2024-03-30T10:00:30|2024-03-30T10:00:50|20|gres/gpu=4|gres/gpu=4
9|ann|vision|COMPLETED|2024-03-30T10:00:50|2024-03-30T10:02:00|2024-03-30T10:02:40|40|gres/gpu=4|gres/gpu=4
10|ann|vision|CANCELLED by 1000|2024-03-30T10:00:30|None|2024-03-30T10:05:30|0||gres/gpu=1
11|eve|text|CANCELLED by 1001|2024-03-30T10:00:40|2024-03-30T10:00:41|2024-03-30T10:00:51|10|gres/gpu=1|gres/gpu=1
12|eve|text|COMPLETED|2024-03-30T10:00:50|2024-03-30T10:00:51|2024-03-30T10:01:51|60|cpu=8,mem=10G|cpu=8
13|eve|text|COMPLETED|2024-03-30T10:00:55|2024-03-30T10:00:56|2024-03-30T10:01:56|60|gres/gpu:a100=1,gres/gpu:v100=1|gres/gpu=2
"""
SACCT_BREAKS: Breaks = {
    "state": ("|FAILED|", "|BROKEN|", 5, "'BROKEN'"),
    "id": ("\n7|ann", "\nseven|ann", 2, "'seven'"),
    "tasks": ("8_[3-9]", "8_[9-3]", 6, "'8_[9-3]'"),
    "tasks without end": ("8_[3-9]", "8_[3-999999999]", 6, "'8_[3-999999999]'"),
    "submit": ("|2024-03-30T10:00:00|", "|Unknown|", 2, "'Unknown'"),
    "elapsed": ("|100|billing", "|1:40|billing", 2, "'1:40'"),
    "negative": ("|3600|", "|-3600|", 4, "'-3600'"),
    "end": ("|2024-03-30T10:05:30|", "|later|", 9, "'later'"),
    "gpus": ("gres/gpu:a100-sxm4=1", "gres/gpu:a100=one", 4, "'gres/gpu:a100=one'"),
    "many gpus": ("|30|gres/gpu=1|", "|30|gres/gpu=99999999|", 5, "99999999"),
    "name with a bar": ("|vision|COMPLETED", "|vis|ion|COMPLETED", 2, "11 cells"),
    "column": ("AllocTRES", "TRES", 1, "ReqTRES"),
    "day": ("2024-03-30T10:00:40", "2024-02-30T10:00:40", 10, "'2024-02-30T10:00:40'"),
}

ELASTICFLOW = """\
job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
a,1932025,45775,resnet50,1933904,256,64,2429
b,2000581,11197,gpt2,2002204,128,1,1532
"""
ELASTICFLOW_BREAKS: Breaks = {
    "time": ("1932025", "x", 2, "'x'"),
    "steps": ("45775", "0", 2, "'0'"),
    "half a step": ("45775", "1.5", 2, "'1.5'"),
    "deadline": ("1933904", "1932025", 2, "'1932025'"),
    "no deadline": ("2002204", "never", 3, "'never'"),
    "batch": ("256", "-1", 2, "'-1'"),
    "gpus": (",64,", ",6x4,", 2, "'6x4'"),
    "duration": ("1532", "nan", 3, "'nan'"),
    "cells": (",1532", "", 3, "7 cells"),
    "column": ("num_iteration", "iterations", 1, "'iterations'"),
}

SIA_PROFILE = "placement,local_bsz,step_time,sync_time\n1,32,0.5,0.1\n1,64,0.9,0.1\n2,32,0.6,0.2\n11,32,0.8,0.3\n"
SIA: Files = {
    "workloads/w.csv": "name,time,application,num_replicas,batch_size\nx-1,20.5,net,2,64\nx-0,10,net,1,256\n",
    "profiles/net-placements-aws.csv": SIA_PROFILE,
    "profiles/net-validation-64.csv": "progress,iteration,metric,grad_sqr,grad_var\n5.0,5,0.1,1,1\n9.0,900,0.2,1,1\n",
    "profiles/net-validation-256.csv": "progress,iteration,metric,grad_sqr,grad_var\n9.0,300,0.2,1,1\n",
}
SIA_BREAKS: Breaks = {
    "time": ("20.5", "soon", 2, "'soon'"),
    "negative time": ("20.5", "-1", 2, "'-1'"),
    "application": (",net,2", ",nets,2", 2, "'nets, 64'"),
    "name of a path": (",net,2", ",../net,2", 2, "'../net'"),
    "replicas": (",2,64", ",0,64", 2, "'0'"),
    "batch": (",2,64", ",2,big", 2, "'big'"),
    "batch without a profile": (",2,64", ",2,65", 2, "'net, 65'"),
    "cells": (",64", "", 2, "4 cells"),
    "id": ("x-1", "", 2, "''"),
    "column": ("num_replicas", "replicas", 1, "name,time,application,replicas"),
    "profile": ("0.5,0.1", "fast,0.1", 2, "'fast'"),
    "no step time": ("0.5,0.1", "0,0.1", 2, "'0'"),
    "long name": (",net,2", f",{'n' * 300},2", 2, "'nnn"),
}

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
101,u1,vcA,8,64,1,COMPLETED,2020-04-01 00:00:23,2020-04-01 00:00:30,2020-04-01 01:00:30,3600,7
102,u2,vcB,0,4,1,FAILED,2020-04-01 00:01:00,2020-04-01 00:01:01,2020-04-01 00:01:31,30,1
103,u2,vcB,1,4,1,CANCELLED,2020-04-01 00:02:00,None,2020-04-01 00:09:31,0,451
"""
HELIOS_BREAKS: Breaks = {
    "state": ("COMPLETED", "DONE", 2, "'DONE'"),
    "gpus": (",8,64", ",-8,64", 2, "'-8'"),
    "half a GPU": (",8,64", ",0.5,64", 2, "'0.5'"),
    "duration": (",3600,", ",-1,", 2, "'-1'"),
    "NaN": (",3600,", ",nan,", 2, "'nan'"),
    "submit": ("2020-04-01 00:00:23", "2020-04-31 00:00:23", 2, "'2020-04-31 00:00:23'"),
    "start": ("2020-04-01 00:01:01", "midnight", 3, "'midnight'"),
    "order": ("2020-04-01 00:00:30", "2020-03-01 00:00:30", 2, "'2020-03-01 00:00:30'"),
    "cells": (",451", "", 4, "11 cells"),
    "column": (",queue", ",waited", 1, "'waited'"),
}

OPENB: Files = {
    "openb_node_list_all_node.csv": (
        "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,64000,262144,2,V100M16\n"
    ),
    "openb_pod_list_default.csv": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,12000,16384,1,1000,V100M16|V100M32,LS,Running,0,1000,5\n"
        "p1,6000,12288,1,460,,BE,Running,40,290,40\n"
        "p2,6000,12288,0,0,,BE,Running,50,90,50\n"
        "p3,6000,12288,2,1000,T4,BE,Failed,60,90,\n"
    ),
}
OPENB_BREAKS: Breaks = {
    "gpus": (",1,1000,V100", ",one,1000,V100", 2, "'one'"),
    "milli": (",1,460,", ",1,4600,", 3, "'4600'"),
    "negative milli": (",1,460,", ",1,-4,", 3, "'-4'"),
    "scheduled": (",290,40", ",290,x", 3, "'x'"),
    "deleted": (",290,40", ",,40", 3, "''"),
    "order": (",290,40", ",29,40", 3, "'29'"),
    "created": ("Running,40", "Running,nan", 3, "'nan'"),
    "cells": (",1000,5\n", ",1000\n", 2, "10 cells"),
    "node's GPUs": (",2,V100M16", ",two,V100M16", 3, "'two'"),
    "node's model": (",2,V100M16", ",2,", 3, "''"),
}

PAI: Files = {
    "pai_task_table.csv": (
        "j1,worker,2.0,Terminated,100.0,400.0,600.0,29.3,50.0,V100M32\n"
        "j1,ps,1.0,Terminated,90.0,500.0,600.0,29.3,0.0,\n"
        "j2,tensorflow,1.0,Failed,200.0,260.0,600.0,29.3,25.0,MISC\n"
        "j3,worker,4.0,Running,300.0,,600.0,29.3,100.0,P100\n"
        "j4,worker,4.0,Terminated,300.0,900.0,600.0,29.3,200.0,P100\n"
    ),
    "pai_job_table.csv": "j1,i1,u1,Terminated,50.0,400.0\nj4,i4,u4,Terminated,250.0,900.0\n",
}
PAI_BREAKS: Breaks = {
    "status": ("j2,tensorflow,1.0,Failed", "j2,tensorflow,1.0,Gone", 3, "'Gone'"),
    "instances": ("worker,2.0,", "worker,two,", 1, "'two'"),
    "plan": (",50.0,V100M32", ",-50.0,V100M32", 1, "'-50.0'"),
    "start": ("200.0,260.0", "soon,260.0", 3, "'soon'"),
    "end": ("200.0,260.0", "200.0,nan", 3, "'nan'"),
    "order": ("200.0,260.0", "200.0,160.0", 3, "'160.0'"),
    "cells": (",MISC", "", 3, "9 cells"),
    "quote": ("j4,worker", '"j4,worker', 5, "unexpected end"),
    "job's cells": ("u4,Terminated", "u4", 2, "5 cells"),
    "job's time": (",50.0,400.0\n", ",noon,400.0\n", 1, "'noon'"),
}

ALIBABA_SPOT: Files = {
    "job_info_df.csv": (
        "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
        "239255,13,A10,20,1,1,0,2764799,HP\n"
        "437260,57,A100-SXM4-80GB,15,1,16,9589663,41060,Spot\n"
        "437261,57,GPU-series-1,15,0.5,2,9589663,71718,Spot\n"
    ),
    "node_info_df.csv": "node_name,gpu_model,gpu_capacity_num,cpu_num\n0,GPU-series-1,4,192\n2,A10,1,128\n",
}
ALIBABA_SPOT_BREAKS: Breaks = {
    "kind": ("2764799,HP", "2764799,LP", 2, "'LP'"),
    "workers": (",1,16,", ",1,many,", 3, "'many'"),
    "gpus": (",0.5,2,", ",-1,2,", 4, "'-1'"),
    "too many": (",1,16,", ",1000000,16,", 3, "16000000"),
    "submit": (",0,2764799", ",-5,2764799", 2, "'-5'"),
    "duration": (",41060,", ",inf,", 3, "'inf'"),
    "cells": (",71718,Spot", ",71718", 4, "8 cells"),
    "column": ("worker_num", "workers", 1, "gpu_request,workers"),
    "node's GPUs": ("series-1,4,", "series-1,x,", 2, "'x'"),
    "id": ("\n239255,", '\n"239,255",', 2, "'239,255'"),
}


def _workload(name: str, begun: str, ended: str, **changes: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": "4", "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}
    conditions = [
        {"type": "QuotaReserved", "status": "True", "lastTransitionTime": begun, "reason": "QuotaReserved"},
        {"type": "Admitted", "status": "True", "lastTransitionTime": begun, "reason": "Admitted"},
        {"type": "Finished", "status": "True", "lastTransitionTime": ended, "reason": "Succeeded"},
    ]
    assignment = {"name": "main", "flavors": {"cpu": "default", "nvidia.com/gpu": "tesla-v100"}, "count": 3}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "team-a", "creationTimestamp": "2024-05-01T08:00:00Z"},
        "spec": {
            "queueName": "user-queue",
            "podSets": [{"name": "main", "count": 3, "template": {"spec": {"containers": [{"resources": resources}]}}}],
        },
        "status": {
            "conditions": conditions,
            "admission": {"clusterQueue": "gpu-queue", "podSetAssignments": [assignment]},
        },
    } | changes


KUEUE = json.dumps(
    {
        "apiVersion": "v1",
        "items": [
            _workload("job-a", "2024-05-01T08:00:10Z", "2024-05-01T08:10:10Z"),
            _workload("job-b", "2024-05-01T08:01:00Z", "2024-05-01T08:01:30Z", status={"conditions": []}),
        ],
        "kind": "List",
    },
    indent=1,
)
KUEUE_BREAKS: Breaks = {
    "kind": ('"kind": "Workload"', '"kind": "Pod"', 4, "'Pod'"),
    "created": ("2024-05-01T08:00:00Z", "2024-05-01T08:00:99Z", 4, "'2024-05-01T08:00:99Z'"),
    "condition's time": ("2024-05-01T08:00:10Z", "early", 4, "'early'"),
    "status": ('"status": "True"', '"status": "yes"', 4, "'yes'"),
    "order": ("2024-05-01T08:10:10Z", "2024-05-01T07:10:10Z", 4, "s before'"),
    "count": ('"count": 3', '"count": -3', 4, "'-3'"),
    "gpus": ('"nvidia.com/gpu": "2"', '"nvidia.com/gpu": "two"', 4, "'two'"),
    "pod sets": ('"podSets": [', '"podSets": 1, "x": [', 4, "1"),
    "name": ('"name": "job-a"', '"name": 7', 4, "7"),
    "cut": ('"kind": "List"\n}', "", 113, "','"),
}

AZURE_LLM = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,400000,30000
2023-11-16 18:17:10.0000000,200000,10000
2023-11-16 18:18:01.5000000,0,60000
2023-11-16 18:18:59.9999999,9000,100
2023-11-16 18:20:00.0000000,374,44
"""
AZURE_LLM_BREAKS: Breaks = {
    "date": ("2023-11-16 18:17:03", "2023-11-31 18:17:03", 2, "'2023-11-31 18:17:03.9799600'"),
    "no date": ("2023-11-16 18:18:01.5000000", "", 4, "''"),
    "words": ("2023-11-16 18:18:59.9999999", "soon", 5, "'soon'"),
    "tokens": (",400000,", ",many,", 2, "'many'"),
    "half a token": (",10000\n", ",0.5\n", 3, "'0.5'"),
    "negative": (",60000", ",-60000", 4, "'-60000'"),
    "NaN": (",9000,", ",nan,", 5, "'nan'"),
    "too many": (",200000,", ",20000000,", 3, "'20000000'"),
    "cells": (",374,44", ",374", 6, "2 cells"),
    "column": ("GeneratedTokens", "Generated", 1, "TIMESTAMP,ContextTokens,Generated"),
}

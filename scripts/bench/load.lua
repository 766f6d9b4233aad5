-- What wrk sends and counts. Arguments after `--`: the path, and the body of a POST; without a body it is a GET.
-- Prints one line: requests, seconds, bytes, latencies in microseconds, and how many answers had which status.
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  counts = ""
  statuses = {}
  local body = args[2]
  local headers = { ["content-type"] = "application/json" }
  if #args > 2 then headers["authorization"] = "Bearer " .. args[3] end
  request_text = wrk.format(body and "POST" or "GET", args[1], headers, body)
end

function request()
  return request_text
end

function response(status)
  statuses[status] = (statuses[status] or 0) + 1
  local parts = {}
  for code, count in pairs(statuses) do parts[#parts + 1] = code .. "=" .. count end
  counts = table.concat(parts, " ")
end

function done(summary, latency)
  local all = {}
  for _, thread in ipairs(threads) do
    for code, count in string.gmatch(thread:get("counts") or "", "(%d+)=(%d+)") do
      all[code] = (all[code] or 0) + tonumber(count)
    end
  end
  local parts = {}
  for code, count in pairs(all) do parts[#parts + 1] = code .. "=" .. count end
  table.sort(parts)
  local errors = summary.errors
  print(string.format("load %d %.3f %d %d %d %d %d %s", summary.requests, summary.duration / 1e6, summary.bytes,
    latency:percentile(50), latency:percentile(99), errors.connect + errors.read + errors.write, errors.timeout,
    table.concat(parts, ",")))
end
